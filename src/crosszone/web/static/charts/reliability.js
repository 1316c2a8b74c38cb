// Reliability of ranges: what a range is to hold against what it holds; on the line it keeps its word, below it is too narrow.
import { groupToken } from "./predicted-measured.js";

const SYMBOLS = ["circle", "rect", "triangle", "diamond", "roundRect"];

/**
 * @param {{name: string, coverage: {nominal_pct: number, inside_pct: number}[]}[]} readings
 * @param {{nominal: string, inside: string, percent: (value: number) => string, tick: (value: number) => string}} say
 * @param {import("../lib/tokens.js").Tokens} tokens
 */
export function reliabilityOption(readings, say, tokens) {
  const axis = (name) => ({
    type: "value", min: 0, max: 100, interval: 20, name, nameLocation: "middle", nameTextStyle: { color: tokens.quiet },
    axisLabel: { color: tokens.quiet, formatter: (value) => say.tick(value), hideOverlap: true }, axisLine: { lineStyle: { color: tokens.line } },
    splitLine: { lineStyle: { color: tokens["line-soft"] } },
  });
  return {
    grid: { left: 34, right: 20, top: 14, bottom: 32, containLabel: true },
    xAxis: { ...axis(say.nominal), nameGap: 26 },
    yAxis: { ...axis(say.inside), nameGap: 44 },
    tooltip: {
      trigger: "item", confine: true,
      formatter: ({ seriesIndex, dataIndex }) => {
        const reading = readings[seriesIndex];
        const point = reading?.coverage[dataIndex];
        return point ? `${reading.name}\n${say.nominal}  ${say.percent(point.nominal_pct)}\n${say.inside}  ${say.percent(point.inside_pct)}` : "";
      },
    },
    series: [
      ...readings.map((reading, at) => ({
        type: "line", name: reading.name, symbol: SYMBOLS[at % SYMBOLS.length], symbolSize: 8, z: 3,
        itemStyle: { color: tokens[groupToken(at)] }, lineStyle: { color: tokens[groupToken(at)], width: 1.6 },
        data: reading.coverage.map((point) => [point.nominal_pct, point.inside_pct]),
      })),
      { type: "line", silent: true, symbol: "none", z: 1, lineStyle: { color: tokens.quiet, width: 1, type: "dashed" }, data: [[0, 0], [100, 100]] },
    ],
  };
}
