import { html, useMemo } from "../lib/dom.js";
import { fetchJson } from "../lib/api.js";
import { linkTo } from "../lib/address.js";
import { useAsked } from "../lib/asked.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { Card } from "../components/card.js";
import { Facts } from "../components/facts.js";
import { More } from "../components/more.js";
import { TableFrame } from "../components/table-frame.js";
import { Refusals } from "../compare/refusals.js";
import { usePercent, useWhen } from "./words.js";

/** Saved runs beside what was predicted of them. @param {{change: any, learn: () => void}} given */
export function RunsCard({ change, learn }) {
  const { t, amount, language } = useText();
  const { pct, signed } = usePercent();
  const { time, range } = useTime();
  const question = useMemo(() => ({}), []);
  const asked = useAsked(question, (_, signal) => fetchJson("calibrate/accuracy/runs", language, signal), { also: [language] });
  const found = asked.answer;
  const when = useWhen();
  const compare = (row) => ({ place: "compare", results: [row.predicted_id, row.id].filter(Boolean).join(","), tab: null, kind: null });
  const shown = (row) => html`
    <tr key=${row.id} data-run=${row.id}>
      <th scope="row"><a href=${linkTo(compare(row))} onClick=${(event) => (event.preventDefault(), change(compare(row)))}>${row.name}</a></th>
      <td class="number">${time(row.measured_s)}</td>
      <td class="number">${row.predicted_s === null ? html`<span class="quiet-text">${t("calibrate.runs.alone")}</span>` : time(row.predicted_s)}${row.low_s !== null && html`<span class="below">${range(row.low_s, row.high_s)}</span>`}</td>
      <td class="number" data-figure="error">${signed(row.error_pct)}</td>
      <td>${row.inside === null ? "-" : row.inside ? t("yes") : t("catalogue.no")}</td>
      <td class="number">${signed(row.tokens_error_pct)}</td>
      <td class="number">${signed(row.memory_error_pct)}</td>
      <td><time datetime=${row.created}>${when(row.created)}</time></td>
    </tr>`;
  return html`
    <${Card} id="calibrate-runs" title=${t("calibrate.runs.heading")} aside=${t("calibrate.runs.about")}>
      <div aria-busy=${asked.busy}>
        <${Refusals} notices=${asked.notices} failed=${asked.failed} />
        ${found?.rows.length === 0 && html`
          <p class="empty">${t("calibrate.runs.empty")}</p>
          <div class="bar"><button type="button" onClick=${learn}>${t("calibrate.runs.bring")}</button></div>`}
        ${found?.rows.length > 0 && html`
          <${Facts} facts=${[
            [t("calibrate.runs.count"), amount(found.rows.length)], [t("calibrate.runs.compared"), amount(found.rows.filter((row) => row.error_pct !== null).length)], [t("calibrate.column.mean_error"), pct(found.mean_pct)],
            [t("calibrate.column.median_error"), pct(found.median_pct)], [t("calibrate.runs.inside"), pct(found.inside_pct)],
          ]} />
          <${TableFrame} label=${t("calibrate.runs.heading")}>
            <thead><tr>
              <th scope="col">${t("calibrate.column.name")}</th><th scope="col" class="number">${t("calibrate.column.measured")}</th>
              <th scope="col" class="number">${t("calibrate.column.predicted")}</th><th scope="col" class="number">${t("calibrate.column.off")}</th>
              <th scope="col">${t("calibrate.column.inside")}</th><th scope="col" class="number">${t("calibrate.column.tokens_off")}</th>
              <th scope="col" class="number">${t("calibrate.column.memory_off")}</th><th scope="col">${t("compare.column.saved")}</th>
            </tr></thead>
            <tbody><${More} most=${10} items=${found.rows} columns=${8} row=${shown} /></tbody>
          <//>`}
      </div>
    <//>`;
}
