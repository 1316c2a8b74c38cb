// Rows and bars of a Gantt chart from the server's timeline documents: nothing is computed, only put in place.

/** Theme colour of each kind of span. */
export const KIND_TOKENS = {
  forward: "work-forward",
  backward: "work-backward",
  weight: "work-weight",
  optimizer: "work-optimizer",
  send: "kind-pipeline",
  tensor: "kind-tensor",
  experts: "kind-expert",
  gradients: "kind-gradients",
  parameters: "kind-weights",
  data: "work-recompute",
  other: "work-other",
  idle: "work-idle",
};

/** Positions in a bar. */
export const START = 0;
export const END = 1;
export const KIND = 2;
export const MICRO = 3;
export const CHUNK = 4;

/** @typedef {{lane: any, index: number, measured: boolean} | {lane: null, index: -1, measured: boolean}} Row */
/** @typedef {[start: number, end: number, kind: string, micro: number, chunk: number]} Bar */

/**
 * The rows from top to bottom: phases, then each lane, a measured lane right beneath the predicted one of the same id.
 * @param {any} view @param {any} measured @param {string[]} groups groups of lanes to show
 * @returns {Row[]}
 */
export function rowsOf(view, measured, groups) {
  const theirs = new Map((measured?.lanes ?? []).map((lane, index) => [lane.id, index]));
  /** @type {Row[]} */
  const rows = [];
  if (view) rows.push({ lane: null, index: -1, measured: false });
  if (measured) rows.push({ lane: null, index: -1, measured: true });
  (view?.lanes ?? []).forEach((lane, index) => {
    const also = theirs.get(lane.id);
    theirs.delete(lane.id);
    if (!groups.includes(lane.group)) return;
    rows.push({ lane, index, measured: false });
    if (also !== undefined) rows.push({ lane: measured.lanes[also], index: also, measured: true });
  });
  for (const index of theirs.values()) {
    if (groups.includes(measured.lanes[index].group)) rows.push({ lane: measured.lanes[index], index, measured: true });
  }
  return rows;
}

/**
 * The bars of each row in the order of time; kinds in `hidden` are left out.
 * @param {Row[]} rows @param {any} view @param {any} measured @param {Set<string>} hidden
 * @returns {Bar[][]}
 */
export function barsOf(rows, view, measured, hidden) {
  /** @type {Bar[][]} */
  const bars = rows.map(() => []);
  for (const [source, isMeasured] of [[view, false], [measured, true]]) {
    if (!source) continue;
    const own = rows.flatMap((row, at) => (row.measured === isMeasured ? [[row.index, at]] : []));
    const at = new Map(/** @type {[number, number][]} */ (own));
    const { bubbles, spans } = source;
    const add = (lane, start, end, kind, micro, chunk) => at.has(lane) && !hidden.has(kind) && bars[at.get(lane)].push([start, end, kind, micro, chunk]);
    bubbles.lane.forEach((lane, i) => add(lane, bubbles.start_s[i], bubbles.end_s[i], "idle", -1, -1));
    spans.lane.forEach((lane, i) => add(lane, spans.start_s[i], spans.end_s[i], source.kinds[spans.kind[i]], spans.micro_batch[i], spans.chunk[i]));
    source.phases.forEach((one) => add(-1, one.start_s, one.end_s, one.phase, -1, -1));
  }
  for (const row of bars) row.sort((one, other) => one[START] - other[START]);
  return bars;
}

/** Position of the first bar of a row that ends at or after a time. @param {Bar[]} bars @param {number} time */
export function firstAt(bars, time) {
  let low = 0;
  let high = bars.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (bars[middle][END] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Kinds that occur, in the order of the legend. @param {any[]} views */
export function kindsOf(views) {
  const found = new Set(views.filter(Boolean).flatMap((view) => view.lanes.flatMap((lane) => Object.keys(lane.parts))));
  return [...Object.keys(KIND_TOKENS).filter((kind) => found.has(kind)), "idle"];
}
