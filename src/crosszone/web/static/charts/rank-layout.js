// Where each rank of a grid is drawn: a band for each stage, a block for each replica, blocks wrapped to the width.

const SIZES = [26, 22, 18, 15, 12, 10, 8, 7, 6, 5, 4, 3, 2];
const MOST_HEIGHT = 400;
/** Share of the largest size that is given up for one line a stage. */
const SMALLER = 0.55;

/**
 * @typedef {{size: number, gutter: number, blockColumns: number, blockRows: number, perLine: number, lines: number, between: number, height: number, band: number}} Layout
 * `size`: pixels of a cell; `perLine`: blocks beside each other; `lines`: of blocks in a band; `between`: pixels between blocks; `band`: pixels of a stage
 */

/**
 * The largest cells that fit; somewhat smaller ones where these put all replicas of a stage side by side.
 * @param {{tp: number, pp: number, dp: number, cp: number}} degrees @param {number} width @param {number} gutter pixels of the stages' names @returns {Layout}
 */
export function layoutOf(degrees, width, gutter) {
  const all = SIZES.map((size) => withCells(size, degrees, Math.max(40, width - gutter - 8), gutter));
  const largest = all.find((one) => one.height <= MOST_HEIGHT) ?? all.at(-1);
  return all.find((one) => one.lines === 1 && one.height <= MOST_HEIGHT && one.size >= SMALLER * largest.size) ?? largest;
}

/** @returns {Layout} */
function withCells(size, { tp, pp, dp, cp }, room, gutter) {
  const between = size >= 8 ? 6 : size >= 4 ? 3 : 1;
  const blockColumns = Math.max(1, Math.min(tp * cp, Math.floor(room / size)));
  const blockRows = Math.ceil((tp * cp) / blockColumns);
  const most = Math.max(1, Math.min(dp, Math.floor((room + between) / (blockColumns * size + between))));
  const lines = Math.ceil(dp / most);
  const perLine = Math.ceil(dp / lines);
  const band = lines * (blockRows * size + between) + (pp > 1 ? 4 : 0);
  return { size, gutter, blockColumns, blockRows, perLine, lines, between, band, height: Math.max(pp * band, 24) };
}

/** Top left corner of a rank's cell. @param {Layout} layout @param {any} columns @param {number} rank @param {number} tp @returns {[number, number]} */
export function cellOf(layout, columns, rank, tp) {
  const replica = columns.dp[rank];
  const inside = columns.cp[rank] * tp + columns.tp[rank];
  const { size, between, blockColumns, blockRows, perLine } = layout;
  const x = layout.gutter + (replica % perLine) * (blockColumns * size + between) + (inside % blockColumns) * size;
  const y = columns.pp[rank] * layout.band + Math.floor(replica / perLine) * (blockRows * size + between) + Math.floor(inside / blockColumns) * size;
  return [x, y];
}

/** The place along the axes that lies at a point, null between cells. @param {Layout} layout @param {number} x @param {number} y @param {number} tp */
export function placeAt(layout, x, y, tp) {
  const { size, between, blockColumns, blockRows, perLine } = layout;
  const stage = Math.floor(y / layout.band);
  const wide = blockColumns * size + between;
  const high = blockRows * size + between;
  const column = Math.floor((x - layout.gutter) / wide);
  const left = x - layout.gutter - column * wide;
  const line = Math.floor((y - stage * layout.band) / high);
  const top = y - stage * layout.band - line * high;
  if (column < 0 || column >= perLine || left >= blockColumns * size || top >= blockRows * size) return null;
  const inside = Math.floor(top / size) * blockColumns + Math.floor(left / size);
  return { pp: stage, dp: line * perLine + column, cp: Math.floor(inside / tp), tp: inside % tp };
}
