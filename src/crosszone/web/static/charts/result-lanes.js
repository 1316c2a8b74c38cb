// Steps of several results beneath each other on one axis: the phases of each, then its stages.
import { drawnRow } from "./gantt-row.js";
import { barsOf, END, firstAt, KIND, rowsOf, START } from "./gantt-rows.js";
import { cut } from "./lane-name.js";

export const ROW = 18;
const TOP = 26;
/** Pixels between two results. */
const APART = 0.6;
const NONE = new Set();

/**
 * Rows of all results from top to bottom, an empty one between two of them.
 * @param {any[]} views timelines of results @param {number} most stages of each that are drawn
 */
export function lanesOf(views, most) {
  return views.flatMap((view, of) => {
    const stages = rowsOf(view, null, ["stages"]);
    const rows = (stages.length > 1 ? stages : rowsOf(view, null, [...new Set(view.lanes.map((lane) => lane.group))])).slice(0, most + 1);
    const bars = barsOf(rows, view, null, NONE);
    const shown = rows.map((row, at) => ({ of, lane: row.lane, bars: bars[at] }));
    return of ? [{ of, lane: undefined, bars: [] }, ...shown] : shown;
  });
}

/** @param {{bars: any[]}[]} rows */
export const lanesHeight = (rows) => TOP + 8 + rows.length * ROW;

/**
 * @param {ReturnType<typeof lanesOf>} rows
 * @param {any[]} views
 * @param {number} scale the end of the axis, s
 * @param {{time: (s: number) => string, phase: (name: string) => string, kind: (name: string) => string, lane: (lane: {id: string, name: string}, narrow?: boolean) => string}} say
 * @param {import("../lib/tokens.js").Tokens} tokens
 * @param {{narrow: boolean, at: () => number | null}} how `at`: seconds beneath the pointer
 */
export function lanesOption(rows, views, scale, say, tokens, { narrow, at }) {
  const called = (row) => (row.lane === undefined ? "" : row.lane ? `  ${say.lane(row.lane, narrow)}` : cut(views[row.of].name, narrow ? 13 : 30));
  return {
    grid: { left: narrow ? 124 : 212, right: 16, top: TOP, bottom: 8 },
    tooltip: {
      trigger: "item", confine: true,
      formatter: ({ dataIndex }) => {
        const row = rows[dataIndex];
        const time = at();
        const bar = time === null ? null : row.bars[firstAt(row.bars, time)];
        const head = [views[row.of].name, row.lane && say.lane(row.lane)].filter(Boolean).join(" · ");
        if (!bar || bar[START] > time) return head;
        return `${head}\n${row.lane ? say.kind(bar[KIND]) : say.phase(bar[KIND])}  ${say.time(bar[END] - bar[START])}`;
      },
    },
    xAxis: {
      type: "value", position: "top", min: 0, max: scale, splitLine: { lineStyle: { color: tokens["line-soft"] } },
      axisLabel: { color: tokens.quiet, formatter: (value) => say.time(value), hideOverlap: true, showMaxLabel: false },
    },
    yAxis: {
      type: "category", inverse: true, data: rows.map((_, index) => index), axisTick: { show: false }, axisLine: { show: false },
      axisLabel: {
        interval: 0, align: "left", margin: narrow ? 118 : 206, width: narrow ? 114 : 200, overflow: "truncate",
        formatter: (_, index) => (rows[index].lane === null ? `{head|${called(rows[index])}}` : `{lane|${called(rows[index])}}`),
        rich: { head: { color: tokens.text, fontWeight: 600, fontSize: 12 }, lane: { color: tokens.quiet, fontSize: 11 } },
      },
    },
    series: [
      {
        type: "custom", progressive: 0, clip: true, emphasis: { disabled: true }, encode: { x: [1, 2], y: 0 }, data: rows.map((_, index) => [index, 0, scale]),
        renderItem: drawnRow(rows.map((row) => row.bars), tokens, { selected: null, others: false, phase: say.phase }),
      },
      {
        type: "custom", silent: true, z: 6, encode: { x: 1, y: 0 }, data: rows.flatMap((row, index) => (row.lane === undefined ? [] : [[index, views[row.of].step_s]])),
        renderItem: (_, api) => {
          const [x, y] = api.coord([api.value(1), api.value(0)]);
          const half = (api.size([0, 1])[1] * (1 + APART)) / 2;
          return { type: "line", shape: { x1: x, y1: y - half, x2: x, y2: y + half }, style: { stroke: tokens.text, lineWidth: 1.2 } };
        },
      },
    ],
  };
}
