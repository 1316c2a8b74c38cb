// From one step to another: what each part adds or saves.

/** @param {{bars: {name: string, start: number, end: number, seconds: number | null}[], tokens: Record<string, string>, written: (seconds: number) => string}} given `seconds` null: a whole step */
export function waterfallOption({ bars, tokens, written }) {
  const least = startOf(bars);
  const colour = ({ seconds }) => (seconds === null ? tokens.accent : seconds > 0 ? tokens.error : tokens.good);
  const sign = (seconds) => (seconds > 0 ? "+" : "");
  return {
    tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, confine: true, formatter: ([first]) => tip(bars[first.dataIndex], written) },
    grid: { left: 8, right: 64, top: 8, bottom: 24, containLabel: true },
    xAxis: { type: "value", min: least, axisLabel: { color: tokens.quiet, formatter: (value) => written(value) }, splitLine: { lineStyle: { color: tokens["line-soft"] } } },
    yAxis: {
      type: "category", inverse: true, data: bars.map(({ name }) => name), axisTick: { show: false },
      axisLine: { lineStyle: { color: tokens.line } }, axisLabel: { color: tokens.text, width: 170, overflow: "truncate" },
    },
    series: [
      { type: "bar", stack: "step", silent: true, itemStyle: { color: "transparent" }, data: bars.map(({ start, end }) => Math.max(Math.min(start, end), least)) },
      {
        type: "bar", stack: "step", barMaxWidth: 16,
        data: bars.map((bar) => ({ value: Math.max(bar.start, bar.end) - Math.max(Math.min(bar.start, bar.end), least), itemStyle: { color: colour(bar), borderRadius: 2 } })),
        label: {
          show: true, position: "right", color: tokens.text, fontSize: 11,
          formatter: ({ dataIndex }) => (bars[dataIndex].seconds === null ? `${written(bars[dataIndex].end)} s` : `${sign(bars[dataIndex].seconds)}${written(bars[dataIndex].seconds)}`),
        },
      },
    ],
  };
}

/** Where the axis begins: at 0, or nearer where the parts would be too thin to see beside the whole steps. */
function startOf(bars) {
  const between = bars.slice(1, -1).flatMap(({ start, end }) => [start, end]);
  const [low, high] = [Math.min(...between), Math.max(...between)];
  return between.length && high - low < 0.15 * low ? low - 0.5 * (high - low) : 0;
}

const tip = (bar, written) => `${bar.name}\n${written(bar.seconds ?? bar.end)} s`;
