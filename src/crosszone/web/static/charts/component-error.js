// Mean absolute error of each part of an iteration, one bar a cluster; the errors of its jobs in the tooltip.

const COLOURS = ["work-forward", "kind-pipeline", "kind-gradients", "kind-context"];
const ROW = 36;

/** The colour of a cluster by its place. @param {number} at */
export const clusterToken = (at) => COLOURS[at % COLOURS.length];
/** @param {any} table components of the accuracy report */
export const errorsHeight = (table) => table.rows.length * ROW + 40;

/**
 * @param {any} table components of the accuracy report
 * @param {{percent: (value: number) => string, mean: string, signed: (value: number) => string}} say
 * @param {import("../lib/tokens.js").Tokens} tokens
 */
export function errorsOption(table, say, tokens) {
  const parts = table.rows;
  const jobs = (row, cluster) =>
    table.jobs.flatMap((job, at) => (job.cluster === cluster && row.errors_pct[at] !== null ? [`${job.name}  ${say.signed(row.errors_pct[at])}`] : []));
  return {
    grid: { left: 8, right: 44, top: 8, bottom: 8, containLabel: true },
    xAxis: {
      type: "value", min: 0, axisLabel: { color: tokens.quiet, formatter: (value) => say.percent(value), hideOverlap: true },
      splitLine: { lineStyle: { color: tokens["line-soft"] } },
    },
    yAxis: {
      type: "category", inverse: true, data: parts.map((row) => row.name), axisTick: { show: false }, axisLine: { lineStyle: { color: tokens.line } },
      axisLabel: { color: tokens.text, fontSize: 11, width: 130, overflow: "break", lineHeight: 13 },
    },
    tooltip: {
      trigger: "item", confine: true,
      formatter: ({ seriesIndex, dataIndex }) => {
        const [cluster, row] = [table.clusters[seriesIndex], parts[dataIndex]];
        return [`${cluster} · ${row.name}`, `${say.mean}  ${say.percent(row.means[cluster].all_pct)}`, ...jobs(row, cluster)].join("\n");
      },
    },
    series: table.clusters.map((cluster, at) => ({
      type: "bar", name: cluster, barWidth: 11, barGap: "20%", itemStyle: { color: tokens[clusterToken(at)] },
      label: { show: true, position: "right", color: tokens.quiet, fontSize: 10.5, formatter: ({ dataIndex }) => say.percent(parts[dataIndex].means[cluster].all_pct) },
      data: parts.map((row) => row.means[cluster].all_pct),
    })),
  };
}
