import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/** Where the figures were read. */
export function Citations({ ids, sources }) {
  const { t } = useText();
  if (!ids.length) return null;
  return html`
    <h3>${t("catalogue.sources")}</h3>
    <ol class="citations">
      ${ids.map((id) => {
        const { title = id, publisher, year, url, note } = sources[id] ?? {};
        return html`
          <li key=${id} id=${`cite-${id}`}>
            ${url ? html`<a href=${url} target="_blank" rel="noreferrer noopener">${title}</a>` : title}
            <span class="below">${[publisher, year, id].filter(Boolean).join(" · ")}</span>
            ${note && html`<span class="below">${note}</span>`}
          </li>`;
      })}
    </ol>`;
}
