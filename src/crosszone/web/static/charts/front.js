// Time against money: plans that no other beats in both.

/** @param {{points: {step_s: number, usd_per_step: number, name: string}[], tokens: Record<string, string>, words: {step: string, usd: string, written: (value: number) => string}}} given */
export function frontOption({ points, tokens, words }) {
  const axis = (name) => ({
    type: "value", scale: true, name, nameLocation: "middle", nameTextStyle: { color: tokens.quiet },
    axisLabel: { color: tokens.quiet, formatter: (value) => words.written(value) }, splitLine: { lineStyle: { color: tokens["line-soft"] } },
  });
  return {
    tooltip: { trigger: "item", confine: true, formatter: ({ dataIndex }) => points[dataIndex].name },
    grid: { left: 30, right: 24, top: 14, bottom: 30, containLabel: true },
    xAxis: { ...axis(words.step), nameGap: 26 },
    yAxis: { ...axis(words.usd), nameGap: 44 },
    series: [{
      type: "line", step: "end", symbol: "circle", symbolSize: 9, lineStyle: { color: tokens.accent, width: 1.5 }, itemStyle: { color: tokens.accent },
      data: points.map(({ step_s: step, usd_per_step: usd }) => [step, usd]),
    }],
  };
}
