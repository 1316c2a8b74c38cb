// How steady iterations are: each one as a dot, in percent above the fastest of its run; a bar at their mean.

const ROW = 30;

/** @param {any[]} runs */
export const steadinessHeight = (runs) => runs.length * ROW + 44;

/**
 * @param {{name: string, seconds: number[], min_s: number, mean_to_min_pct: number}[]} runs
 * @param {{above: string, time: (s: number) => string, percent: (value: number) => string, tick: (value: number) => string, mean: string}} say
 * @param {import("../lib/tokens.js").Tokens} tokens @param {boolean} narrow
 */
export function steadinessOption(runs, say, tokens, narrow) {
  const above = (run, seconds) => 100 * (seconds / run.min_s - 1); // where the dot lies
  return {
    grid: { left: 8, right: 24, top: 8, bottom: 26, containLabel: true },
    xAxis: {
      type: "value", min: 0, splitNumber: narrow ? 3 : 6, name: say.above, nameLocation: "middle", nameGap: 24, nameTextStyle: { color: tokens.quiet },
      axisLabel: { color: tokens.quiet, formatter: (value) => say.tick(value), hideOverlap: true }, splitLine: { lineStyle: { color: tokens["line-soft"] } },
    },
    yAxis: {
      type: "category", inverse: true, data: runs.map((_, at) => String(at)), axisTick: { show: false }, axisLine: { lineStyle: { color: tokens.line } },
      axisLabel: { color: tokens.text, fontSize: 11, lineHeight: 12, width: narrow ? 112 : 200, overflow: "truncate", formatter: (at) => runs[at].name },
    },
    tooltip: {
      trigger: "item", confine: true,
      formatter: ({ seriesIndex, dataIndex, data }) =>
        seriesIndex === 0
          ? `${runs[dataIndex].name}\n${say.mean}  ${say.percent(runs[dataIndex].mean_to_min_pct)}`
          : `${runs[data[1]].name}\n${data[2] + 1}: ${say.time(data[3])}`,
    },
    series: [
      { type: "bar", barWidth: 12, itemStyle: { color: tokens["accent-soft"], borderColor: tokens.accent, borderWidth: 1 }, data: runs.map((run) => run.mean_to_min_pct) },
      {
        type: "scatter", symbolSize: 6, z: 4, itemStyle: { color: tokens.accent, borderColor: tokens.surface, borderWidth: 0.5 },
        data: runs.flatMap((run, at) => run.seconds.map((seconds, index) => [above(run, seconds), at, index, seconds])),
      },
    ],
  };
}
