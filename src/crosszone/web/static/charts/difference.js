// A waterfall: from one step to another, each part beginning where the one before it ends.

/** @param {number} before @param {number} after @param {{name: string, seconds: number}[]} parts @param {{before: string, after: string}} words @param {Record<string, string>} tokens */
export function differenceOption(before, after, parts, words, tokens) {
  let at = before;
  const bars = parts.map(({ name, seconds }) => {
    const from = at;
    at += seconds;
    return { name, low: Math.min(from, at), high: Math.max(from, at), seconds, colour: seconds < 0 ? tokens.good : tokens.error };
  });
  const whole = (name, seconds) => ({ name, low: 0, high: seconds, seconds, colour: tokens.bar });
  const all = [whole(words.before, before), ...bars, whole(words.after, after)];
  const short = (value) => Number(value.toPrecision(4));
  return {
    grid: { left: 8, right: 52, top: 6, bottom: 6, outerBoundsMode: "same" },
    xAxis: { type: "value", axisLabel: { color: tokens.quiet, fontSize: 11, hideOverlap: true }, splitLine: { lineStyle: { color: tokens["line-soft"] } } },
    yAxis: {
      type: "category", inverse: true, data: all.map((bar) => bar.name), axisTick: { show: false }, axisLine: { lineStyle: { color: tokens.line } },
      axisLabel: { color: tokens.text, fontSize: 11, lineHeight: 12, width: 130, overflow: "break" },
    },
    tooltip: { trigger: "item", confine: true, formatter: ({ dataIndex }) => `${all[dataIndex].name}: ${short(all[dataIndex].seconds)} s` },
    series: [
      { type: "bar", stack: "all", silent: true, itemStyle: { color: "transparent" }, data: all.map((bar) => bar.low) },
      {
        type: "bar", stack: "all", barWidth: 12,
        label: { show: true, position: "right", color: tokens.quiet, fontSize: 11, formatter: ({ dataIndex }) => String(short(all[dataIndex].seconds)) },
        data: all.map((bar) => ({ value: bar.high - bar.low, itemStyle: { color: bar.colour } })),
      },
    ],
  };
}
