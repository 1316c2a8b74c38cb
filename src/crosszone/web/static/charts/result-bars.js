// Results as stacked bars to one scale, the range of a prediction as a thin line at the end of its bar.
import { cut } from "./lane-name.js";

const TOKENS = {
  classes: { compute: "work-forward", communication: "kind-pipeline", pipeline: "work-idle", host: "work-optimizer", other: "work-idle" },
  phases: { warm_up: "work-weight", steady: "work-forward", cool_down: "work-backward", tail: "kind-gradients", other: "work-idle" },
  parts: {
    compute: "bar", communication: "kind-local", matmul: "work-forward", attention: "work-backward", elementwise: "work-weight",
    routing: "block-5", embedding: "block-2", head: "block-4", recompute: "work-recompute", host: "block-3", tensor: "kind-tensor",
    context: "kind-context", expert: "kind-expert", sharding: "kind-sharding", pipeline: "kind-pipeline", bubble: "work-idle",
    gradients: "kind-gradients", weights: "kind-weights", optimizer: "work-optimizer", local_update: "kind-local", fixed: "work-other",
    jitter: "warning", other: "work-idle",
  },
};
const BAR = 34;
/** What is not told apart is hatched. */
const HATCHED = "other";

/** The name of the colour of a class, part or phase. @param {string} way @param {string} name */
export const tokenOf = (way, name) => TOKENS[way][name] ?? "work-idle";

/** @param {any} found what /compare answers */
export const barsHeight = (found) => found.sides.length * BAR + 46;

/**
 * @param {any} found what /compare answers
 * @param {string} way classes, parts or phases
 * @param {any[]} step cells of the step time, with its range
 * @param {{word: (name: string) => string, figure: (name: string, value: number) => string, percent: (hundredths: number) => string, step: string}} say
 * @param {import("../lib/tokens.js").Tokens} tokens @param {boolean} narrow
 */
export function barsOption(found, way, step, say, tokens, narrow) {
  const ends = step.map((cell) => cell.high ?? cell.value);
  const seconds = (value) => `${say.figure("step_time_s", value)} s`;
  return {
    grid: { left: 8, right: 24, top: 8, bottom: 8, containLabel: true },
    xAxis: {
      type: "value", min: 0, max: Math.max(found.scale_s, ...ends),
      axisLabel: { color: tokens.quiet, formatter: (value) => say.figure("step_time_s", value), hideOverlap: true, showMaxLabel: false },
      splitLine: { lineStyle: { color: tokens["line-soft"] } },
    },
    yAxis: {
      type: "category", inverse: true, data: found.sides.map((_, at) => String(at)),
      axisLabel: { color: tokens.text, formatter: (at) => cut(found.sides[at].name, narrow ? 17 : 34) },
      axisTick: { show: false }, axisLine: { lineStyle: { color: tokens.line } },
    },
    tooltip: {
      trigger: "axis", axisPointer: { type: "none" },
      formatter: (shown) => {
        const at = shown[0].dataIndex;
        const against = (cell) => (at && cell.percent !== null ? `  (${say.percent(cell.percent)})` : "");
        const lines = found[way].filter((row) => row.cells[at]?.value > 0).map((row) => `${say.word(row.name)}  ${seconds(row.cells[at].value)}${against(row.cells[at])}`);
        return [found.sides[at].name, ...lines, `${say.step}  ${seconds(found.sides[at].step_s)}`].join("\n");
      },
    },
    series: [
      ...found[way].map((row) => ({
        type: "bar", stack: "step", name: say.word(row.name), barWidth: 18, data: row.cells.map((cell) => cell?.value ?? null),
        itemStyle: { color: tokens[tokenOf(way, row.name)], borderColor: tokens.surface, borderWidth: 0.5, decal: row.name === HATCHED ? hatch(tokens.quiet) : null },
      })),
      { type: "custom", name: say.step, data: step.map((cell, at) => [cell.low ?? cell.value, cell.high ?? cell.value, at]), encode: { x: [0, 1], y: 2 }, silent: true, z: 5, renderItem: whisker(tokens.text) },
    ],
  };
}

const hatch = (color) => ({ color, dashArrayX: [1, 0], dashArrayY: [1, 4], rotation: -Math.PI / 4 });

/** A line from the low to the high end of a step, with a mark at each. */
const whisker = (colour) => (_, api) => {
  const [low, y] = api.coord([api.value(0), api.value(2)]);
  const [high] = api.coord([api.value(1), api.value(2)]);
  if (high - low < 1) return null;
  const line = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke: colour, lineWidth: 1.2 } });
  return { type: "group", children: [line(low, y, high, y), line(low, y - 4, low, y + 4), line(high, y - 4, high, y + 4)] };
};
