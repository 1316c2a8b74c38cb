// One row of a Gantt chart on the canvas: all bars of a colour are one path, so that thousands of them zoom at once.
import { END, firstAt, KIND, KIND_TOKENS, MICRO, START } from "./gantt-rows.js";

const SHAPE = "gantt-bars";
const PHASE_TOKENS = { warm_up: "kind-local", steady: "good", cool_down: "kind-context", tail: "work-other" };
const HEIGHTS = { idle: 0.3, ...Object.fromEntries(Object.keys(PHASE_TOKENS).map((phase) => [phase, 0.5])) };
const HEIGHT = 0.76;
/** Least width and height in pixels of a bar that is labelled. */
const LABELLED = [20, 9];
/** A bar with room around it is never thinner, in pixels: a message of a microsecond stays visible. */
const LEAST = 0.6;
/** Pixels above which a bar leaves a hair to the next one; how many times its own width is room enough. */
const APART = 4;
let registered = false;

/** Teach ECharts the path that holds many bars. @param {any} library */
export function registerBars(library) {
  if (registered) return;
  registered = true;
  const buildPath = (path, { bars, top, height }) => {
    for (let at = 0; at < bars.length; at += 2) path.rect(bars[at], top, bars[at + 1], height);
  };
  library.graphic.registerShape(SHAPE, library.graphic.extendShape({ shape: { bars: [], top: 0, height: 0 }, buildPath }));
}

/** Add a bar to a path; those of less than a pixel share the column they begin in, which is as full as they are long. */
function put(bars, left, wide) {
  const column = Math.floor(left);
  if (wide >= 1) bars.push(left, wide > APART ? wide - 0.7 : wide);
  else if (bars.at(-2) === column) bars[bars.length - 1] = Math.min(1, bars.at(-1) + wide);
  else bars.push(column, wide);
}

/**
 * The drawing function of ECharts' custom series: one item a row.
 * @param {import("./gantt-rows.js").Bar[][]} rows
 * @param {import("../lib/tokens.js").Tokens} tokens
 * @param {{selected: number | null, others: boolean, phase: (name: string) => string}} how `selected`: the micro-batch that stands out;
 *   `others`: what belongs to none steps back too
 */
export function drawnRow(rows, tokens, { selected, others, phase }) {
  const colours = Object.fromEntries(Object.entries({ ...KIND_TOKENS, ...PHASE_TOKENS }).map(([kind, token]) => [kind, tokens[token]]));
  return (params, api) => {
    const row = rows[params.dataIndex];
    const { x, width } = params.coordSys;
    const [zero, middle] = api.coord([0, params.dataIndex]);
    const scale = api.coord([1, params.dataIndex])[0] - zero;
    const band = api.size([0, 1])[1];
    const paths = new Map();
    const texts = [];
    for (let at = firstAt(row, (x - zero) / scale); at < row.length; at += 1) {
      const bar = row[at];
      const left = Math.max(x, zero + bar[START] * scale);
      if (left > x + width) break;
      const room = at + 1 < row.length ? (row[at + 1][START] - bar[START]) * scale : LEAST * APART;
      const wide = Math.max(Math.min(LEAST, room / APART), Math.min(x + width, zero + bar[END] * scale) - left);
      const kind = bar[KIND];
      const chosen = selected !== null && bar[MICRO] === selected;
      const faded = selected !== null && !chosen && (others || bar[MICRO] >= 0) && !(kind in PHASE_TOKENS);
      const key = faded ? `${kind} faded` : kind;
      if (!paths.has(key)) paths.set(key, path(kind, faded, middle, band));
      put(paths.get(key).shape.bars, left, wide);
      const word = kind in PHASE_TOKENS ? phase(kind) : bar[MICRO] >= 0 ? String(bar[MICRO]) : "";
      if (word && wide >= Math.max(LABELLED[0], word.length * 8) && band * HEIGHT >= LABELLED[1]) texts.push(text(word, left + wide / 2, middle, kind));
    }
    return { type: "group", children: [...paths.values(), ...texts] };
  };

  function path(kind, faded, middle, band) {
    const height = band * (HEIGHTS[kind] ?? HEIGHT);
    const opacity = faded ? 0.28 : kind in PHASE_TOKENS ? 0.55 : 1;
    return { type: SHAPE, shape: { bars: [], top: middle - height / 2, height }, style: { fill: colours[kind], opacity } };
  }

  function text(word, x, y, kind) {
    const fill = kind in PHASE_TOKENS ? tokens.text : tokens.surface;
    return { type: "text", silent: true, style: { text: word, x, y, align: "center", verticalAlign: "middle", fill, fontSize: 10 } };
  }
}
