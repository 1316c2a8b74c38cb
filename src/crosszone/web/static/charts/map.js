// The training map: zones on a land outline, links coloured by the kind that sends most over them.
import { degreesAt, linkLabel, mapLayout } from "./map-layout.js";

/**
 * @typedef {{name: string, lat: number | null, lon: number | null, gpus: number, lines: string[], tip: string}} MapZone
 * @typedef {{from: number, to: number, bytes: number, kind: string | null, tip: string}} MapLine one direction; `kind` null: unused
 * @typedef {{from: number, to: number, bytes: number, lines: string[], tip: string}} MapLabel of a link, both directions
 */

const LINE_HEIGHT = 15;
const RADIUS = { least: 6, more: 12 };
/** Zones beyond which circles are drawn smaller, and unused links fainter. */
const MANY = 6;
let pen = null;

/** Token of a kind of traffic. @param {string} kind */
export const kindToken = (kind) => `kind-${kind.split(" ")[0]}`;

/** @param {{zones: MapZone[], lines: MapLine[], labels: MapLabel[], width: number, height: number, tokens: Record<string, string>, land: (corner: any, other: any) => string}} given `land`: the name of the map of a view */
export function mapOption({ zones, lines, labels, width, height, tokens, land }) {
  const most = Math.max(...zones.map(({ gpus }) => gpus), 1);
  const many = zones.length > MANY;
  const dots = zones.map((zone) => ({
    ...zone,
    radius: (RADIUS.least + RADIUS.more * Math.sqrt(zone.gpus / most)) * (many ? 0.65 : 1),
    label: sizeOf(zone.lines, tokens),
  }));
  const layout = mapLayout(dots, width, height);
  const at = (point) => degreesAt(layout.view, point);
  const corners = [at({ x: 0, y: 0 }), at({ x: width, y: height })];
  const heaviest = Math.max(...lines.map(({ bytes }) => bytes), 1);
  const ends = ({ from, to }) => shortened(layout.points[from], layout.points[to], dots[from].radius, dots[to].radius);
  const named = labels
    .filter(({ bytes }) => bytes > 0 || !many)
    .sort((a, b) => b.bytes - a.bytes)
    .map((label) => ({ label, box: linkLabel(layout.points[label.from], layout.points[label.to], sizeOf(label.lines, tokens), layout.taken, width, height) }))
    .filter(({ box }) => box);

  return {
    tooltip: { trigger: "item", confine: true, formatter: ({ data }) => data?.tip ?? "" },
    backgroundColor: layout.view.known ? tokens.sea : "transparent",
    geo: {
      map: land(corners[0], corners[1]), silent: true, roam: false, left: 0, right: 0, top: 0, bottom: 0,
      aspectScale: layout.view.across / layout.view.down,
      boundingCoords: corners,
      itemStyle: { areaColor: tokens.land, borderColor: tokens.land, opacity: layout.view.known ? 1 : 0 },
    },
    series: [
      {
        type: "lines", coordinateSystem: "geo", z: 2, symbol: ["none", "arrow"], symbolSize: 9,
        data: lines.map((line) => ({
          coords: ends(line).map(at),
          tip: line.tip,
          symbol: line.kind ? ["none", "arrow"] : ["none", "none"],
          lineStyle: line.kind
            ? { color: tokens[kindToken(line.kind)], width: 1.5 + 3.5 * (line.bytes / heaviest), opacity: 0.9, curveness: 0.12 }
            : { color: tokens.quiet, width: 1, type: "dashed", opacity: many ? 0.15 : 0.45, curveness: 0 },
        })),
      },
      {
        type: "scatter", coordinateSystem: "geo", z: 3,
        itemStyle: { color: tokens.accent, borderColor: tokens.surface, borderWidth: 2 },
        data: dots.map((dot, number) => ({ value: at(layout.points[number]), symbolSize: 2 * dot.radius, tip: dot.tip })),
      },
      writing(named.map(({ label, box }) => [label, box]), at, tokens, 4),
      writing(dots.map((dot, number) => [dot, layout.labels[number]]), at, tokens, 5),
    ],
  };
}

/** Labels as boxes that let a little of the map through. */
function writing(pairs, at, tokens, z) {
  return {
    type: "scatter", coordinateSystem: "geo", symbol: "roundRect", z,
    itemStyle: { color: tokens.surface, opacity: 0.82 },
    label: {
      show: true, position: "inside", lineHeight: LINE_HEIGHT, color: tokens.text, fontSize: 11, fontFamily: tokens.sans,
      rich: { first: { fontWeight: 600, fontSize: 12, lineHeight: LINE_HEIGHT, color: tokens.text }, more: { fontSize: 11, lineHeight: LINE_HEIGHT, color: tokens.quiet } },
    },
    data: pairs.map(([{ lines, tip }, box]) => ({
      value: at(box), symbolSize: [box.width, box.height], tip,
      label: { formatter: () => lines.map((line, number) => `{${number ? "more" : "first"}|${line.replaceAll("}", ")")}}`).join("\n") },
    })),
  };
}

/** The room that lines of text take. */
function sizeOf(lines, tokens) {
  pen ??= document.createElement("canvas").getContext("2d");
  const widths = lines.map((line, number) => {
    pen.font = number ? `11px ${tokens.sans}` : `600 12px ${tokens.sans}`;
    return pen.measureText(line).width;
  });
  return { width: Math.max(...widths) + 8, height: lines.length * LINE_HEIGHT + 4 };
}

/** A line that begins and ends at the rims of its circles. */
function shortened(from, to, before, after) {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  const along = (point, pixels) => ({ x: point.x + ((to.x - from.x) * pixels) / length, y: point.y + ((to.y - from.y) * pixels) / length });
  return [along(from, before + 1), along(to, -after - 2)];
}
