// Predicted against measured steps, both axes in decades: on the line they agree, the band holds ±20 %.

const PALETTE = ["work-forward", "kind-pipeline", "kind-gradients", "kind-expert", "kind-context", "kind-sharding", "kind-local", "work-other"];
const BAND = 0.2;

/** The colour of a group by its place. @param {number} at */
export const groupToken = (at) => PALETTE[Math.min(at, PALETTE.length - 1)];
/** Groups that have a colour of their own; the last one stands for the rest. */
export const MOST_GROUPS = PALETTE.length - 1;

/**
 * @param {{name: string, points: {id: string, measured_s: number, predicted_s: number, error_pct: number}[]}[]} groups
 * @param {{measured: string, predicted: string, time: (s: number) => string, percent: (value: number) => string}} say
 * @param {import("../lib/tokens.js").Tokens} tokens
 */
export function scatterOption(groups, say, tokens) {
  const all = groups.flatMap((group) => group.points.flatMap((one) => [one.measured_s, one.predicted_s]));
  const [low, high] = [10 ** Math.floor(Math.log10(Math.min(...all))), 10 ** Math.ceil(Math.log10(Math.max(...all)))];
  const axis = (name) => ({
    type: "log", min: low, max: high, name, nameLocation: "middle", nameTextStyle: { color: tokens.quiet },
    axisLabel: { color: tokens.quiet, formatter: (value) => say.time(value), hideOverlap: true }, axisLine: { lineStyle: { color: tokens.line } },
    splitLine: { lineStyle: { color: tokens["line-soft"] } }, minorTick: { show: false },
  });
  const line = (factor, type) => ({
    type: "line", silent: true, symbol: "none", z: 1, lineStyle: { color: tokens.quiet, width: 1, type },
    data: [[low, low * factor], [high, high * factor]], clip: true,
  });
  return {
    grid: { left: 34, right: 34, top: 14, bottom: 32, containLabel: true },
    xAxis: { ...axis(say.measured), nameGap: 26 },
    yAxis: { ...axis(say.predicted), nameGap: 52 },
    tooltip: {
      trigger: "item", confine: true,
      formatter: ({ seriesIndex, dataIndex }) => {
        const group = groups[seriesIndex];
        const one = group?.points[dataIndex];
        if (!one) return "";
        return `${one.id}\n${group.name}\n${say.measured}  ${say.time(one.measured_s)}\n${say.predicted}  ${say.time(one.predicted_s)}  (${say.percent(one.error_pct)})`;
      },
    },
    series: [
      ...groups.map((group, at) => ({
        type: "scatter", name: group.name, symbolSize: 6, z: 3, itemStyle: { color: tokens[groupToken(at)], opacity: 0.75 },
        data: group.points.map((one) => [one.measured_s, one.predicted_s]),
      })),
      line(1, "solid"), line(1 + BAND, "dashed"), line(1 - BAND, "dashed"),
    ],
  };
}
