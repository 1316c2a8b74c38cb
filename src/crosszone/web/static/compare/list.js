import { html, useRef } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { TableFrame } from "../components/table-frame.js";
import { SaveShown } from "./empty.js";
import { Row } from "./row.js";
import { Sure } from "./sure.js";

const COLUMNS = ["step", "tokens", "memory", "usd"];

/**
 * The saved results: choose, rename, delete, export.
 * @param {{results: import("./results.js").Results, chosen: string[], choose: (ids: string[]) => void, remove: (ids: string[]) => Promise<void>, change: any}} given
 */
export function List({ results, chosen, choose, remove, change }) {
  const { t, language } = useText();
  const heading = useRef(null);
  const { rows } = results;
  const all = rows.every((row) => chosen.includes(row.id));
  const toggle = (id) => choose(chosen.includes(id) ? chosen.filter((one) => one !== id) : [...chosen, id]);
  const drop = (ids) => remove(ids).then(() => heading.current?.focus());
  const file = (format) => `/api/v1/results/export?ids=${chosen.slice(0, 50).join(",")}&format=${format}&lang=${language}`;
  return html`
    <${Card} id="compare-list" title=${t("compare.heading")} aside=${t("compare.about")}>
      <div class="bar" ref=${heading} tabindex="-1">
        <${SaveShown} save=${results.save} />
        <span class="grow"></span>
        ${chosen.length > 0 && html`
          <span class="quiet-text" data-figure="chosen">${t("compare.count", { count: chosen.length })}</span>
          <button type="button" class="quiet" onClick=${() => choose([])}>${t("compare.clear")}</button>
          <a class="button" href=${file("csv")} download>${t("compare.export_csv")}</a>
          <a class="button" href=${file("json")} download>${t("compare.export_json")}</a>
          <${Sure} label=${t("compare.delete_chosen")} question=${t("compare.delete_sure_all", { count: chosen.length })} act=${() => drop(chosen)} />`}
      </div>
      <${TableFrame} label=${t("compare.heading")}>
        <thead>
          <tr>
            <th scope="col"><input type="checkbox" aria-label=${t("compare.select_all")} checked=${all}
              indeterminate=${!all && chosen.length > 0} onChange=${() => choose(all ? [] : rows.map((row) => row.id))} /></th>
            <th scope="col">${t("compare.column.name")}</th>
            <th scope="col">${t("compare.column.kind")}</th>
            ${COLUMNS.map((key) => html`<th scope="col" key=${key} class="number">${t(`compare.column.${key}`)}</th>`)}
            <th scope="col" class="compare-wide">${t("compare.column.way")}</th>
            <th scope="col" class="compare-wide">${t("compare.column.saved")}</th>
            <th scope="col"><span class="visually-hidden">${t("compare.column.actions")}</span></th>
          </tr>
        </thead>
        <tbody>
          ${rows.map((row) => html`
            <${Row} key=${row.id} row=${row} at=${chosen.indexOf(row.id)} toggle=${() => toggle(row.id)} rename=${results.rename} remove=${() => drop([row.id])} change=${change} />`)}
        </tbody>
      <//>
      ${results.more && html`<div class="bar"><button type="button" onClick=${results.older}>${t("compare.older")}</button></div>`}
    <//>`;
}
