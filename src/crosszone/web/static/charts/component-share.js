// What iterations are made of, in percent: of each job what was measured above what is predicted.

const TOKENS = {
  forward: "work-forward", backward: "work-backward", mp_allreduce: "kind-tensor", p2p_send: "kind-pipeline",
  dp_allreduce: "kind-gradients", update: "work-optimizer", waiting: "work-idle",
};
const ROW = 21;

/** @param {string} part */
export const shareToken = (part) => TOKENS[part] ?? "work-other";

/** Rows from top to bottom. @param {any[]} shares @param {string[]} names of their jobs @param {{measured: string, predicted: string}} words */
export const shareRows = (shares, names, words) =>
  shares.flatMap((one, at) => [
    ...(one.measured_pct ? [{ job: names[at], name: `${one.job.name} #${one.job.id}`, cluster: one.job.cluster, what: words.measured, parts: one.measured_pct, first: true }] : []),
    { job: names[at], name: `${one.job.name} #${one.job.id}`, cluster: one.job.cluster, what: words.predicted, parts: one.predicted_pct, first: !one.measured_pct },
  ]);

/** @param {any[]} rows */
export const sharesHeight = (rows) => rows.length * ROW + 34;

/**
 * @param {ReturnType<typeof shareRows>} rows @param {Record<string, string>} names of the parts
 * @param {{percent: (value: number) => string, tick: (value: number) => string}} say @param {import("../lib/tokens.js").Tokens} tokens @param {boolean} narrow
 */
export function sharesOption(rows, names, say, tokens, narrow) {
  return {
    grid: { left: narrow ? 112 : 280, right: 28, top: 4, bottom: 26 },
    xAxis: { type: "value", min: 0, max: 100, axisLabel: { color: tokens.quiet, formatter: (value) => say.tick(value), hideOverlap: true }, splitLine: { lineStyle: { color: tokens["line-soft"] } } },
    yAxis: {
      type: "category", inverse: true, data: rows.map((_, at) => String(at)), axisTick: { show: false }, axisLine: { show: false },
      axisLabel: {
        interval: 0, color: tokens.text, fontSize: narrow ? 10 : 11, lineHeight: 11, width: narrow ? 106 : 270, overflow: "truncate",
        formatter: (at) => (!rows[at].first ? rows[at].what : narrow ? rows[at].job : `${rows[at].job} · ${rows[at].what}`),
      },
    },
    tooltip: {
      trigger: "axis", axisPointer: { type: "none" }, confine: true,
      formatter: ([{ dataIndex }]) => [
        `${rows[dataIndex].cluster} · ${rows[dataIndex].name} · ${rows[dataIndex].what}`,
        ...Object.keys(names).map((part) => `${names[part]}  ${say.percent(rows[dataIndex].parts[part] ?? 0)}`),
      ].join("\n"),
    },
    series: Object.keys(names).map((part) => ({
      type: "bar", stack: "all", name: names[part], barWidth: 14, data: rows.map((row) => row.parts[part] ?? 0),
      itemStyle: { color: tokens[shareToken(part)], borderColor: tokens.surface, borderWidth: 0.5 },
    })),
  };
}
