import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { Facts } from "../components/facts.js";
import { More } from "../components/more.js";
import { TableFrame } from "../components/table-frame.js";
import { usePercent } from "./words.js";

const COLUMNS = ["mape_pct", "median_ape_pct", "bias_pct", "within_10_pct", "within_20_pct", "band_coverage_pct", "memory_mape_pct"];

/** Errors by source. @param {{report: any}} given */
export function SourcesCard({ report }) {
  const { t, amount } = useText();
  const { pct, signed } = usePercent();
  const main = report.summary["measured_runs.csv"];
  const cells = (row) => COLUMNS.map((key) => html`<td class="number" key=${key}>${key === "bias_pct" ? signed(row[key]) : pct(row[key])}</td>`);
  return html`
    <${Card} id="calibrate-sources" title=${t("calibrate.sources.heading")} aside=${t("calibrate.sources.about")}>
      ${main && html`
        <${Facts} facts=${[
          [t("calibrate.sources.scored"), amount(main.scored)], [t("calibrate.column.mean_error"), pct(main.mape_pct)], [t("calibrate.column.median_error"), pct(main.median_ape_pct)],
          [t("calibrate.score.band_coverage_pct"), pct(main.band_coverage_pct)], [t("calibrate.score.memory_mape_pct"), pct(main.memory_mape_pct)],
          ...(report.ranking ? [[t("calibrate.sources.ranking"), pct(report.ranking.pairs_right_pct)]] : []),
        ]} />`}
      <${TableFrame} label=${t("calibrate.sources.heading")}>
        <thead><tr><th scope="col">${t("calibrate.column.source")}</th><th scope="col" class="number">${t("calibrate.score.scored")}</th>
          ${COLUMNS.map((key) => html`<th scope="col" key=${key} class="number">${t(`calibrate.score.${key}`)}</th>`)}</tr></thead>
        <tbody><${More} most=${14} items=${report.sources} columns=${COLUMNS.length + 2} row=${(row) => html`
          <tr key=${`${row.file} ${row.source}`} data-source=${row.source}><th scope="row">${row.source}</th><td class="number">${amount(row.scored)}</td>${cells(row)}</tr>`} /></tbody>
      <//>
    <//>`;
}
