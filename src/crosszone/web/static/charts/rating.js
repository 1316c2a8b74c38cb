// Bars of what makes a step uncertain.

/** @param {{name: string, seconds: number}[]} rows @param {Record<string, string>} tokens */
export function ratingOption(rows, tokens) {
  return {
    grid: { left: 8, right: 20, top: 2, bottom: 4, outerBoundsMode: "same" },
    xAxis: { type: "value", axisLabel: { color: tokens.quiet, fontSize: 11, hideOverlap: true }, splitLine: { lineStyle: { color: tokens["line-soft"] } } },
    yAxis: {
      type: "category", inverse: true, data: rows.map((row) => row.name), axisTick: { show: false }, axisLine: { lineStyle: { color: tokens.line } },
      axisLabel: { color: tokens.text, fontSize: 11, width: 130, lineHeight: 12, overflow: "break" },
    },
    tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, confine: true },
    series: [{ type: "bar", barWidth: 10, itemStyle: { color: tokens.bar }, data: rows.map((row) => row.seconds) }],
  };
}
