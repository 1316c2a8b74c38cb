import { html, useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { clusterToken, errorsHeight, errorsOption } from "../charts/component-error.js";
import { jobNames, usePercent } from "./words.js";

/** Errors of the parts of an iteration, by cluster; the table has every job. @param {{table: any}} given */
export function ComponentsCard({ table }) {
  const { t } = useText();
  const { pct, signed, tick } = usePercent();
  const tokens = useTokens();
  const narrow = useMemo(() => matchMedia("(max-width: 700px)").matches, []);
  const names = useMemo(() => jobNames(table.jobs), [table]);
  const option = useMemo(() => errorsOption(table, names, { percent: pct, signed, tick, mean: t("calibrate.column.mean_error") }, tokens, narrow), [table, tokens, pct, narrow]);
  const figures = useMemo(() => ({
    columns: [t("calibrate.column.part"), ...table.clusters, ...names],
    rows: table.rows.map((row) => [row.name, ...table.clusters.map((cluster) => row.means[cluster].all_pct), ...row.errors_pct]),
  }), [table, t]);
  return html`
    <${Card} id="calibrate-components" title=${t("calibrate.components.heading")} aside=${t("calibrate.components.about")}>
      <${Chart} name="component-error" option=${option} table=${figures} height=${errorsHeight(table)} label=${t("calibrate.components.label", { clusters: table.clusters.join(", ") })}>
        <ul class="compare-legend">${table.clusters.map((name, at) => html`<li key=${name}><span class="swatch" style=${{ backgroundColor: tokens[clusterToken(at)] }}></span>${name}</li>`)}</ul>
      <//>
    <//>`;
}
