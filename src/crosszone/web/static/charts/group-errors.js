// Errors of groups of runs: a bar to the median, a dot at the mean.

const ROW = 24;

/** @param {unknown[]} groups */
export const groupErrorsHeight = (groups) => groups.length * ROW + 48;

/**
 * @param {{name: string, rows: number, mean_pct: number, median_pct: number, inside_pct: number}[]} groups
 * @param {{error: string, mean: string, median: string, rows: string, percent: (value: number) => string, tick: (value: number) => string, called: (name: string) => string}} say
 * @param {import("../lib/tokens.js").Tokens} tokens @param {boolean} narrow
 */
export function groupErrorsOption(groups, say, tokens, narrow) {
  return {
    grid: { left: 12, right: 24, top: 8, bottom: 28, outerBoundsMode: "same", outerBoundsContain: "axisLabel" },
    xAxis: {
      type: "value", min: 0, splitNumber: narrow ? 3 : 6, name: say.error, nameLocation: "middle", nameGap: 26, nameTextStyle: { color: tokens.quiet },
      axisLabel: { color: tokens.quiet, formatter: (value) => say.tick(value), hideOverlap: true }, splitLine: { lineStyle: { color: tokens["line-soft"] } },
    },
    yAxis: {
      type: "category", inverse: true, data: groups.map((group) => say.called(group.name)), axisTick: { show: false }, axisLine: { lineStyle: { color: tokens.line } },
      axisLabel: { color: tokens.text, fontSize: 11, interval: 0, width: narrow ? 120 : 200, overflow: "truncate" },
    },
    tooltip: {
      trigger: "axis", axisPointer: { type: "shadow" }, confine: true,
      formatter: ([{ dataIndex }]) => {
        const group = groups[dataIndex];
        return `${say.called(group.name)}\n${say.rows}  ${group.rows}\n${say.median}  ${say.percent(group.median_pct)}\n${say.mean}  ${say.percent(group.mean_pct)}`;
      },
    },
    series: [
      { type: "bar", barWidth: 11, itemStyle: { color: tokens["accent-soft"], borderColor: tokens.accent, borderWidth: 1 }, data: groups.map((group) => group.median_pct) },
      { type: "scatter", symbolSize: 7, z: 4, itemStyle: { color: tokens["kind-pipeline"] }, data: groups.map((group, at) => [group.mean_pct, at]) },
    ],
  };
}
