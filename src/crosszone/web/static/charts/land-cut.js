// The part of the land outline that a map shows: drawing all of the world for one country would take ten times as long.

/** @typedef {[number, number]} Point longitude and latitude */

/** @param {any} land GeoJSON of polygons @param {Point} corner north-west @param {Point} other south-east */
export function cutLand(land, [west, north], [east, south]) {
  const sides = [
    [([x]) => x >= west, (a, b) => at(a, b, (west - a[0]) / (b[0] - a[0]))],
    [([x]) => x <= east, (a, b) => at(a, b, (east - a[0]) / (b[0] - a[0]))],
    [([, y]) => y >= south, (a, b) => at(a, b, (south - a[1]) / (b[1] - a[1]))],
    [([, y]) => y <= north, (a, b) => at(a, b, (north - a[1]) / (b[1] - a[1]))],
  ];
  const cut = (ring) => closed(sides.reduce((points, [inside, crossing]) => beyond(points, inside, crossing), ring));
  const polygons = land.features
    .flatMap(({ geometry }) => geometry.coordinates)
    .map((polygon) => polygon.map(cut).filter((ring) => ring.length > 3))
    .filter(([outer]) => outer);
  const corner = [[west, north], [west, north], [west, north], [west, north]]; // a map of the open sea still needs a shape
  const coordinates = polygons.length ? polygons : [[corner]];
  return { type: "FeatureCollection", features: [{ type: "Feature", properties: { name: "land" }, geometry: { type: "MultiPolygon", coordinates } }] };
}

const at = (a, b, share) => [a[0] + share * (b[0] - a[0]), a[1] + share * (b[1] - a[1])];

/** The ring without what lies beyond one side of the view (Sutherland and Hodgman). */
function beyond(ring, inside, crossing) {
  const kept = [];
  for (let number = 0; number < ring.length; number += 1) {
    const [before, point] = [ring[(number + ring.length - 1) % ring.length], ring[number]];
    if (inside(point) !== inside(before)) kept.push(crossing(before, point));
    if (inside(point)) kept.push(point);
  }
  return kept;
}

const closed = (ring) => (ring.length ? [...ring, ring[0]] : ring);
