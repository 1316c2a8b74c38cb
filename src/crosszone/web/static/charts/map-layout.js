// Where zones, their labels and the labels of links lie on the map, in pixels: near their place on the land, never on each other.

/** @typedef {{x: number, y: number, width: number, height: number}} Box centre and size */
/** @typedef {{name: string, lat: number | null, lon: number | null, radius: number, label: {width: number, height: number}}} Dot */

/** Pixels between the outermost zones and the border, where their labels lie. */
const MARGIN = { x: 96, y: 48 };
/** Degrees of latitude that are seen at least: a single city still shows its coast. */
const LEAST_DEGREES = 9;
/** Pixels kept free between two things. */
const GAP = 4;
const ROUNDS = 200;
/** Places of a label beside a point of its line, in widths and heights of the label. */
const BESIDE = [[0, 0], [0, -0.8], [0, 0.8], [0.6, 0], [-0.6, 0], [0, 1.6], [0, -1.6], [0, 2.4], [0, -2.4]];

/**
 * The part of the world that is seen, and where each zone lies on it.
 * @param {Dot[]} dots
 * @param {number} width
 * @param {number} height
 */
export function mapLayout(dots, width, height) {
  const view = viewOf(dots, width, height);
  const points = apart(dots, dots.map((dot, at) => pointOf(dot, at, dots, view)), width, height);
  const taken = points.map(({ x, y }, at) => ({ x, y, width: 2 * dots[at].radius, height: 2 * dots[at].radius }));
  const labels = dots.map((dot, at) => {
    const found = zoneLabel(points[at], dot, taken, width, height, centreOf(points));
    taken.push(found);
    return found;
  });
  return { view, points, labels, taken };
}

/**
 * Where the label of a link lies: beside the middle of its line if that is free, else nearer to an end, else nowhere.
 * @param {{x: number, y: number}} from
 * @param {{x: number, y: number}} to
 * @param {{width: number, height: number}} size
 * @param {Box[]} taken grows by the label
 * @param {number} width
 * @param {number} height
 * @returns {Box | null}
 */
export function linkLabel(from, to, size, taken, width, height) {
  for (const share of [0.5, 0.4, 0.6, 0.3, 0.7])
    for (const [aside, below] of BESIDE) {
      const box = {
        x: from.x + share * (to.x - from.x) + aside * size.width,
        y: from.y + share * (to.y - from.y) + below * size.height,
        ...size,
      };
      if (inside(box, width, height) && !taken.some((other) => meets(box, other))) {
        taken.push(box);
        return box;
      }
    }
  return null;
}

/** @param {Box} a @param {Box} b */
export const meets = (a, b) => Math.abs(a.x - b.x) < (a.width + b.width) / 2 + GAP && Math.abs(a.y - b.y) < (a.height + b.height) / 2 + GAP;

/** Longitude and latitude of a pixel. */
export const degreesAt = ({ west, north, across, down }, { x, y }) => [west + x / across, north - y / down];

/** The seen part: its corner and the pixels of a degree; `known`: the zones have places. */
function viewOf(dots, width, height) {
  const placed = dots.filter(({ lat, lon }) => lat !== null && lon !== null);
  if (!placed.length) return { west: 0, north: 0, across: 1, down: 1, known: false };
  const lats = placed.map(({ lat }) => lat);
  const lons = placed.map(({ lon }) => lon);
  const [south, north, west, east] = [Math.min(...lats), Math.max(...lats), Math.min(...lons), Math.max(...lons)];
  const middle = (south + north) / 2;
  const squeeze = Math.max(0.4, Math.cos((middle * Math.PI) / 180));
  const fits = (space, degrees) => Math.max(space, 40) / Math.max(degrees, 1e-6);
  const down = Math.min(fits(height - 2 * MARGIN.y, north - south), fits(width - 2 * MARGIN.x, (east - west) * squeeze), height / LEAST_DEGREES);
  const across = down * squeeze;
  return { west: (west + east) / 2 - width / 2 / across, north: middle + height / 2 / down, across, down, known: true };
}

/** Its place on the land; on a ring where no zone has one, along the upper border where only this one has none. */
function pointOf(dot, at, dots, view) {
  if (view.known && dot.lat !== null) return { x: (dot.lon - view.west) * view.across, y: (view.north - dot.lat) * view.down };
  if (view.known) return { x: MARGIN.x * (1 + at), y: MARGIN.y };
  if (dots.length === 1) return { x: null, y: null };
  const angle = (2 * Math.PI * at) / dots.length - Math.PI / 2;
  return { x: Math.cos(angle), y: Math.sin(angle), ring: true };
}

/** Points pushed away from each other until circles and labels have room; those of a ring stretched over the place. */
function apart(dots, points, width, height) {
  const room = { x: Math.max(width / 2 - MARGIN.x, 20), y: Math.max(height / 2 - MARGIN.y, 20) };
  const found = points.map(({ x, y, ring }) => (ring || x === null ? { x: width / 2 + (x ?? 0) * room.x, y: height / 2 + (y ?? 0) * room.y } : { x, y }));
  const least = dots.map(({ radius, label }) => ({ x: radius + label.width / 2, y: (radius + label.height) / 2 + GAP }));
  for (let round = 0; round < ROUNDS; round += 1) {
    let moved = false;
    for (let a = 0; a < found.length; a += 1)
      for (let b = a + 1; b < found.length; b += 1) {
        const [dx, dy] = [found[b].x - found[a].x, found[b].y - found[a].y];
        const [needX, needY] = [least[a].x + least[b].x, least[a].y + least[b].y];
        const distance = Math.hypot(dx / needX, dy / needY);
        if (distance >= 1) continue;
        const angle = distance > 1e-3 ? Math.atan2(dy / needY, dx / needX) : (2 * Math.PI * b) / found.length + 0.5;
        const push = (1.01 - distance) / 2;
        for (const [point, sign] of /** @type {[{x: number, y: number}, number][]} */ ([[found[a], -1], [found[b], 1]])) {
          point.x = within(point.x + sign * push * needX * Math.cos(angle), width, MARGIN.x / 2);
          point.y = within(point.y + sign * push * needY * Math.sin(angle), height, MARGIN.y / 2);
        }
        moved = true;
      }
    if (!moved) break;
  }
  return found;
}

const within = (value, size, margin) => Math.min(Math.max(value, margin), size - margin);

const centreOf = (points) => ({
  x: points.reduce((sum, { x }) => sum + x, 0) / points.length,
  y: points.reduce((sum, { y }) => sum + y, 0) / points.length,
});

/** The label of a zone: on the side away from the others, or on the one that hides least. */
function zoneLabel(point, { radius, label }, taken, width, height, centre) {
  const beside = radius + GAP + label.width / 2;
  const over = radius + GAP + label.height / 2;
  const sides = [
    { x: point.x + beside, y: point.y }, { x: point.x - beside, y: point.y },
    { x: point.x, y: point.y + over }, { x: point.x, y: point.y - over },
  ].map((side) => ({ ...side, ...label }));
  const away = (box) => -((box.x - point.x) * (point.x - centre.x) + (box.y - point.y) * (point.y - centre.y));
  const hidden = (box) => taken.filter((other) => meets(box, other)).length + (inside(box, width, height) ? 0 : 2);
  return sides.sort((a, b) => hidden(a) - hidden(b) || away(a) - away(b))[0];
}

const inside = (box, width, height) =>
  box.x - box.width / 2 >= 0 && box.x + box.width / 2 <= width && box.y - box.height / 2 >= 0 && box.y + box.height / 2 <= height;
