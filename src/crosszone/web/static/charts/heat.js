// A heat map of a sweep: a rectangle a cell, coloured by the logarithm of its step, with the line where the choice flips.

/**
 * @typedef {{values: number[], scale: string, field: string}} Axis
 * @typedef {{x: number, y: number, kind: string, step: number | null}} Cell
 */

/** Where on an axis a value lies, counted in cells; null: outside of it. @param {Axis} axis @param {number} value */
function place(axis, value) {
  const { values } = axis;
  const on = axis.scale === "log" ? Math.log : (number) => number;
  for (let at = 0; at + 1 < values.length; at += 1) {
    const [low, high] = [values[at], values[at + 1]];
    if (value >= low && value <= high) return at + (on(value) - on(low)) / (on(high) - on(low));
  }
  return values.length === 1 && value === values[0] ? 0 : null;
}

/** The end of a piece of line, drawn out to the edge of the outermost cells. */
function outward(axis, value) {
  const at = place(axis, value);
  return at === 0 ? -0.5 : at === axis.values.length - 1 ? at + 0.5 : at;
}

/**
 * @param {{x: Axis, y: Axis, cells: Cell[], flips: any[], present: (number | null)[]}} map
 * @param {{x: string, y: string, step: string, present: string, letter: (cell: Cell) => string, tell: (cell: Cell) => string, number: (value: number) => string}} words
 * @param {Record<string, string>} tokens
 */
export function heatOption({ x, y, cells, flips, present }, words, tokens) {
  const steps = cells.map((cell) => cell.step).filter((step) => step !== null);
  const [least, most] = steps.length ? [Math.log10(Math.min(...steps)), Math.log10(Math.max(...steps))] : [0, 1];
  const wide = x.values.length;
  const axis = (one, name) => ({
    type: "value", min: -0.5, max: one.values.length - 0.5, name, nameLocation: "middle", nameGap: 28, nameTextStyle: { color: tokens.quiet, fontSize: 11.5 },
    splitLine: { show: false }, axisLine: { show: false }, axisTick: { show: false },
    axisLabel: { color: tokens.quiet, fontSize: 11, hideOverlap: true, customValues: one.values.map((_, at) => at), formatter: (at) => words.number(Number(one.values[Math.round(at)].toPrecision(3))) },
  });
  const data = cells.map((cell, at) => [at % wide, Math.floor(at / wide), cell.step === null ? null : Math.log10(cell.step)]);
  const draw = (params, api) => {
    const cell = cells[params.dataIndex];
    const [left, bottom] = api.coord([api.value(0) - 0.5, api.value(1) - 0.5]);
    const [right, top] = api.coord([api.value(0) + 0.5, api.value(1) + 0.5]);
    const dark = cell.step !== null && most > least && (Math.log10(cell.step) - least) / (most - least) > 0.5;
    const fill = cell.step === null ? tokens.ground : api.visual("color");
    return {
      type: "group",
      children: [
        { type: "rect", shape: { x: left, y: top, width: right - left, height: bottom - top }, style: { fill, stroke: tokens.surface, lineWidth: 1 } },
        { type: "text", style: { text: words.letter(cell), x: (left + right) / 2, y: (top + bottom) / 2, align: "center", verticalAlign: "middle", fill: dark ? tokens.surface : tokens.text, fontSize: 11 } },
      ],
    };
  };
  const at = present.every((value) => typeof value === "number") ? [place(x, present[0]), place(y, present[1])] : [null, null];
  const pieces = flips.map((flip) => ({
    coords: [[edge(x, flip.start[0], flip.start[0] === flip.end[0]), edge(y, flip.start[1], flip.start[1] === flip.end[1])], [edge(x, flip.end[0], flip.start[0] === flip.end[0]), edge(y, flip.end[1], flip.start[1] === flip.end[1])]],
  }));
  return {
    grid: { left: 26, right: 12, top: 34, bottom: 14, outerBoundsMode: "same" },
    xAxis: axis(x, words.x),
    yAxis: { ...axis(y, words.y), nameGap: 40 },
    tooltip: { trigger: "item", confine: true, formatter: ({ dataIndex, seriesId }) => (seriesId === "cells" ? words.tell(cells[dataIndex]) : words.present) },
    visualMap: {
      type: "continuous", seriesIndex: 0, dimension: 2, min: least, max: most > least ? most : least + 1, orient: "horizontal", left: "center", top: 0, itemHeight: 140, itemWidth: 10, calculable: false,
      inRange: { color: [tokens["heat-low"], tokens["heat-high"]] }, textStyle: { color: tokens.quiet, fontSize: 11 },
      text: [`${words.number(Number((10 ** most).toPrecision(4)))} s`, `${words.step}: ${words.number(Number((10 ** least).toPrecision(4)))}`], formatter: (value) => words.number(10 ** value),
    },
    series: [
      { id: "cells", type: "custom", renderItem: draw, data, encode: { x: 0, y: 1 } },
      { id: "flips", type: "lines", coordinateSystem: "cartesian2d", silent: true, z: 5, lineStyle: { color: tokens.error, width: 3, opacity: 1, cap: "square" }, data: pieces },
      {
        id: "present", type: "scatter", z: 6, symbol: "circle", symbolSize: 13, itemStyle: { color: tokens.surface, borderColor: tokens.accent, borderWidth: 3 },
        data: at.some((one) => one === null) ? [] : [at],
      },
    ],
  };
}

/** An end of a piece: on its own axis where it lies, along the other out to the edge. */
const edge = (axis, value, across) => (across ? place(axis, value) : outward(axis, value));
