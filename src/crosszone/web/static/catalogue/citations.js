import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/** Source of a figure that the user gave. */
const OWN = "own";

/** Where the figures were read. @param {{ids: string[], sources: Record<string, any>}} given */
export function Citations({ ids, sources }) {
  const { t } = useText();
  if (!ids.length) return null;
  return html`
    <h3>${t("catalogue.sources")}</h3>
    <ol class="citations">
      ${ids.map((id) => {
        const { title = id, publisher, year, url, note } = id === OWN ? { title: t("catalogue.own_source") } : (sources[id] ?? {});
        return html`
          <li key=${id} id=${`cite-${id}`}>
            ${url ? html`<a href=${url} target="_blank" rel="noreferrer noopener">${title}</a>` : title}
            <span class="below">${[publisher, year, id === OWN ? null : id].filter(Boolean).join(" · ")}</span>
            ${note && html`<span class="below">${note}</span>`}
          </li>`;
      })}
    </ol>`;
}
