import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { TableFrame } from "../components/table-frame.js";
import { usePercent } from "./words.js";

/** Errors of operators by GPU: cross-validated, and on sizes that were left out. @param {{operators: any[] | null}} given */
export function OperatorsCard({ operators }) {
  const { t, amount } = useText();
  const families = [...new Set((operators ?? []).flatMap((row) => Object.keys(row.families)))];
  const { pct } = usePercent();
  return html`
    <${Card} id="calibrate-operators" title=${t("calibrate.operators.heading")} aside=${t("calibrate.operators.about")}>
      ${operators?.length === 0 && html`<p class="empty">${t("calibrate.operators.empty")}</p>`}
      ${operators?.length > 0 && html`
        <${TableFrame} label=${t("calibrate.operators.heading")}>
          <thead>
            <tr><th scope="col">${t("calibrate.column.family")}</th>${operators.map((row) => html`
              <th scope="col" class="number" key=${row.gpu}>${row.gpu}<span class="below">${t("calibrate.operators.columns")}</span></th>`)}</tr>
          </thead>
          <tbody>
            ${families.map((family) => html`
              <tr key=${family} data-family=${family}>
                <th scope="row">${t(`calibrate.family.${family.replaceAll(" ", "_")}`)}</th>
                ${operators.map((row) => {
                  const found = row.families[family];
                  return html`<td class="number" key=${row.gpu}>${found ? html`${pct(found.error_pct)} / ${pct(found.unseen_pct)}<span class="below">${t("calibrate.operators.samples", { count: amount(found.samples) })}</span>` : "-"}</td>`;
                })}
              </tr>`)}
          </tbody>
        <//>
        <ul class="plain calibrate-foot">${operators.map((row) => html`<li key=${row.gpu}><strong>${row.gpu}</strong>: ${row.source}</li>`)}</ul>`}
    <//>`;
}
