import { html, useEffect, useState } from "../lib/dom.js";
import { fetchJson } from "../lib/api.js";
import { linkTo } from "../lib/address.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { More } from "../components/more.js";
import { TableFrame } from "../components/table-frame.js";
import { Refusals } from "../compare/refusals.js";
import { usePercent } from "./words.js";

/** Homes of coefficients in use, with where they come from and how far predictions with them may be off. @param {{used: string | null}} given */
export function ShippedCard({ used }) {
  const { t, amount, framework: called, language } = useText();
  const [rows, setRows] = useState(null);
  const [lost, setLost] = useState(null);
  useEffect(() => {
    fetchJson("profiles", language).then((found) => (setRows(found), setLost(null)), setLost);
  }, [language, used]);
  const { signed } = usePercent();
  const range = (row) => `${signed(100 * (row.low - 1))} … ${signed(100 * (row.high - 1))}`;
  const seen = (row) => t(!row.measured ? "catalogue.no" : row.fitted ? "yes" : "calibrate.shipped.seen");
  const fitted = (row) => {
    if (row.coefficients) return t("calibrate.shipped.fitted", { fitted: amount(row.fitted), all: amount(row.coefficients) });
    return row.like ? t("calibrate.shipped.none_like", { name: row.like }) : t("calibrate.shipped.none_common");
  };
  const shown = (row) => html`
    <tr key=${`${row.kind} ${row.name}`}>
      <th scope="row"><a href=${linkTo({ place: "catalogue", kind: "profiles", entry: row.name, tab: null })}>${row.name}</a></th>
      <td>${t(`catalogue.profile_kind.${row.kind}`)}${row.framework && html`<span class="below">${row.framework === "any" ? t("calibrate.shipped.any") : called(row.framework)}</span>`}</td>
      <td class="calibrate-short">${seen(row)}</td>
      <td class=${row.coefficients ? "number" : "number calibrate-short"}>${fitted(row)}</td>
      <td class="number">${range(row)}</td>
      <td class="calibrate-source">${row.source}</td>
    </tr>`;
  return html`
    <${Card} id="calibrate-shipped" title=${t("calibrate.shipped.heading")} aside=${t("calibrate.shipped.about")}>
      <div aria-busy=${!rows && !lost}>
        ${lost && html`<${Refusals} notices=${lost.notices ?? []} failed=${!lost.notices?.length} />`}
        ${rows && html`
          <${TableFrame} label=${t("calibrate.shipped.heading")}>
            <thead>
              <tr>
                <th scope="col">${t("calibrate.column.name")}</th>
                <th scope="col">${t("column.profile_of")}</th>
                <th scope="col">${t("column.measured")}</th>
                <th scope="col" class="number">${t("calibrate.column.fitted")}</th>
                <th scope="col" class="number">${t("calibrate.column.range")}</th>
                <th scope="col">${t("calibrate.column.source")}</th>
              </tr>
            </thead>
            <tbody><${More} most=${12} items=${rows} columns=${6} row=${shown} /></tbody>
          <//>`}
      </div>
    <//>`;
}
