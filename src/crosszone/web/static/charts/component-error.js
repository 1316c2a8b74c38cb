// Mean absolute error of each part of an iteration, one bar a cluster; the errors of its jobs in the tooltip.

const COLOURS = ["work-forward", "kind-pipeline", "kind-gradients", "kind-context"];
const ROW = 36;

/** The colour of a cluster by its place. @param {number} at */
export const clusterToken = (at) => COLOURS[at % COLOURS.length];
/** @param {any} table components of the accuracy report */
export const errorsHeight = (table) => table.rows.length * ROW + 40;

/**
 * @param {any} table components of the accuracy report @param {string[]} names of its jobs
 * @param {{percent: (value: number) => string, tick: (value: number) => string, mean: string, signed: (value: number) => string}} say
 * @param {import("../lib/tokens.js").Tokens} tokens @param {boolean} narrow
 */
export function errorsOption(table, names, say, tokens, narrow) {
  const parts = table.rows;
  const jobs = (row, cluster) =>
    table.jobs.flatMap((job, at) => (job.cluster === cluster && row.errors_pct[at] !== null ? [`${names[at]}  ${say.signed(row.errors_pct[at])}`] : []));
  return {
    grid: { left: 8, right: 52, top: 8, bottom: 8, containLabel: true },
    xAxis: {
      type: "value", min: 0, splitNumber: narrow ? 3 : 6, axisLabel: { color: tokens.quiet, formatter: (value) => say.tick(value), hideOverlap: true },
      splitLine: { lineStyle: { color: tokens["line-soft"] } },
    },
    yAxis: {
      type: "category", inverse: true, data: parts.map((row) => row.name), axisTick: { show: false }, axisLine: { lineStyle: { color: tokens.line } },
      axisLabel: { color: tokens.text, fontSize: narrow ? 10 : 11, width: narrow ? 105 : 190, overflow: "break", lineHeight: 12 },
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
