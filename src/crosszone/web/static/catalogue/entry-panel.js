import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { fetchJson, segment } from "../lib/api.js";
import { useText } from "../lib/text.js";
import { Bars } from "../components/bars.js";
import { TableFrame } from "../components/table-frame.js";
import { Citations } from "./citations.js";
import { nameOf } from "./columns.js";
import { RemoveButton } from "./remove-button.js";
import { UseEntry } from "./use-entry.js";

const LINK_FIGURES = ["rtt_ms", "gbps", "gbps_back", "flow_gbps", "flows"];

/**
 * One entry of the catalogue with the source of each figure; `begin` (none: it cannot be) starts an own entry from it.
 * @param {{kind: string, name: string, close: () => void, begin: ((draft: import("./place.js").Draft, event: any) => void) | null,
 *   removed: () => void, change: (changes: any) => void}} given
 */
export function EntryPanel({ kind, name, close, begin, removed, change }) {
  const { t, language } = useText();
  const [entry, setEntry] = useState(null);
  const [sources, setSources] = useState({});
  const [lost, setLost] = useState(null);
  const heading = useRef(null);

  useEffect(() => {
    const found = kind === "links" ? linkEntry(name, language) : fetchJson(`catalogue/${kind}/${segment(name)}`, language);
    Promise.all([found, fetchJson("catalogue/sources", language)]).then(([one, cited]) => {
      setEntry(one);
      setSources(cited);
    }, setLost);
  }, [kind, name]);
  useEffect(() => heading.current?.focus(), []);

  const cited = [...new Set((entry?.figures ?? []).flatMap((figure) => figure.source ?? []))];
  return html`
    <aside class="pane entry" aria-labelledby="entry-heading" onKeyDown=${(event) => event.key === "Escape" && close()}>
      <div class="entry-head">
        <h2 id="entry-heading" ref=${heading} tabindex="-1">${name} ${entry?.own && html`<span class="own">${t("catalogue.own")}</span>`}</h2>
        <button type="button" class="quiet" onClick=${close}>${t("close")}</button>
      </div>
      ${lost && html`<p class="text-error" role="alert">${lost.notices[0]?.message ?? t("failed")}</p>`}
      ${entry && begin && html`
        <div class="entry-actions">
          ${entry.own && html`<button type="button" onClick=${(event) => begin({ mode: "edit", name: entry.name }, event)}>${t("catalogue.edit")}</button>`}
          <button type="button" onClick=${(event) => begin({ mode: "copy", name: entry.name }, event)}>${t("catalogue.copy")}</button>
          ${entry.own && html`<${RemoveButton} kind=${kind} name=${entry.name} removed=${removed} />`}
          <${UseEntry} kind=${kind} name=${entry.name} change=${change} />
        </div>`}
      ${entry && html`
        ${entry.aliases?.length > 0 && html`<p class="quiet-text">${t("catalogue.aliases", { names: entry.aliases.join(", ") })}</p>`}
        ${entry.notes && html`<p>${entry.notes}</p>`}
        <${Figures} figures=${entry.figures} cited=${cited} />
        ${entry.parameters && html`
          <h3>${t("model.heading")}</h3>
          <${Bars} label=${t("model.heading")} counted=${entry.parameters} />`}
        <${Citations} ids=${cited} sources=${sources} />`}
    </aside>`;
}

function Figures({ figures, cited }) {
  const { t, label, shown } = useText();
  if (!figures.length) return html`<p class="empty">${t("catalogue.nothing")}</p>`;
  const number = (id) => cited.indexOf(id) + 1;
  return html`
    <${TableFrame} label=${t("catalogue.figures")}>
      <thead class="capital"><tr><th scope="col">${label("figure")}</th><th scope="col">${label("value")}</th><th scope="col">${label("source")}</th></tr></thead>
      <tbody>
        ${figures.map(
          ({ figure, value, source, origin }) => html`
            <tr key=${figure}>
              <th scope="row">${t(`figure.${figure}`)}</th>
              <td class="value">${figure === "year" ? value : value === true ? t("yes") : shown(value)} ${origin && html`<span class="origin">${t(`rate_origin.${origin}`)}</span>`}</td>
              <td>${[].concat(source ?? []).map((id) => html`<a class="cite" href=${`#cite-${id}`} title=${id}>[${number(id)}]</a> `)}</td>
            </tr>`,
        )}
      </tbody>
    <//>`;
}

/** A measured pair in the shape of an entry. */
async function linkEntry(name, language) {
  const pair = (await fetchJson("catalogue/links", language)).find((row) => nameOf("links", row) === name);
  const figures = LINK_FIGURES.filter((key) => pair?.[key] !== undefined).map((figure) => ({ figure, value: pair[figure], source: pair.source }));
  return { figures, notes: pair?.note };
}
