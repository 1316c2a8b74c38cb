import { html, useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { clusterToken, errorsHeight, errorsOption } from "../charts/component-error.js";
import { usePercent } from "./words.js";

/** Errors of the parts of an iteration, by cluster; the table has every job. @param {{table: any}} given */
export function ComponentsCard({ table }) {
  const { t } = useText();
  const { pct, signed } = usePercent();
  const tokens = useTokens();
  const option = useMemo(() => errorsOption(table, { percent: pct, signed, mean: t("calibrate.column.mean_error") }, tokens), [table, tokens, pct]);
  const figures = useMemo(() => ({
    columns: [t("calibrate.column.part"), ...table.clusters, ...table.jobs.map((job) => `${job.cluster} ${job.name}`)],
    rows: table.rows.map((row) => [row.name, ...table.clusters.map((cluster) => row.means[cluster].all_pct), ...row.errors_pct]),
  }), [table, t]);
  return html`
    <${Card} id="calibrate-components" title=${t("calibrate.components.heading")} aside=${t("calibrate.components.about")}>
      <${Chart} name="component-error" option=${option} table=${figures} height=${errorsHeight(table)} label=${t("calibrate.components.label", { clusters: table.clusters.join(", ") })}>
        <ul class="compare-legend">${table.clusters.map((name, at) => html`<li key=${name}><span class="swatch" style=${{ backgroundColor: tokens[clusterToken(at)] }}></span>${name}</li>`)}</ul>
      <//>
    <//>`;
}
