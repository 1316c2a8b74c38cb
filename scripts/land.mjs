// Makes the land outline of the map: `node scripts/land.mjs land-50m.json > src/crosszone/web/static/vendor/land.json`, in a folder with
// topojson-client, d3-geo and d3-geo-projection installed and the file taken from the npm package world-atlas (Natural Earth, public domain).
// Rings of world-atlas run over the 180th meridian; cutting them there spares the map stripes from edge to edge. Antarctica is left out.
import { readFileSync } from "node:fs";
import { geoArea, geoEquirectangular } from "d3-geo";
import { geoProject } from "d3-geo-projection";
import { feature } from "topojson-client";

const SMALLEST = 1.2e-5; // steradians, some 500 km2
const topology = JSON.parse(readFileSync(process.argv[2], "utf8"));
const degrees = geoEquirectangular().scale(180 / Math.PI).translate([0, 0]).precision(0);
const rings = feature(topology, topology.objects.land)
  .features.flatMap(({ geometry }) => geometry.coordinates)
  .filter((polygon) => geoArea({ type: "Polygon", coordinates: polygon }) > SMALLEST);
const flat = geoProject({ type: "MultiPolygon", coordinates: rings }, degrees);

const rounded = (ring) => {
  const points = ring.map(([x, y]) => [Math.round(x * 8) / 8, -Math.round(y * 8) / 8]);
  return points.filter(([x, y], at) => at === 0 || x !== points[at - 1][0] || y !== points[at - 1][1]);
};
const polygons = flat.coordinates
  .map((polygon) => polygon.map(rounded).filter((ring) => ring.length > 3))
  .filter((polygon) => polygon.length > 0 && Math.max(...polygon[0].map(([, y]) => y)) > -60);
const land = { type: "Feature", properties: { name: "land" }, geometry: { type: "MultiPolygon", coordinates: polygons } };
process.stdout.write(JSON.stringify({ type: "FeatureCollection", features: [land] }) + "\n");
