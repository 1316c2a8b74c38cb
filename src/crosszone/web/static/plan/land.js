// The land outline, fetched when the first map is drawn, and cut to what a map shows.
import { useEffect, useState } from "../lib/dom.js";
import { useEcharts } from "../lib/echarts.js";
import { cutLand } from "../charts/land-cut.js";

const EMPTY = { type: "FeatureCollection", features: [] };
const names = new Map();
let outline = null;

/**
 * Gives the name of the map of a view, made known to ECharts; null until the outline is there. Without any land where it cannot be had.
 * @returns {((corner: [number, number], other: [number, number]) => string) | null}
 */
export function useLand() {
  const echarts = useEcharts();
  const [land, setLand] = useState(outline);
  useEffect(() => {
    let wanted = true;
    if (!land)
      fetch("/vendor/land.json")
        .then((answer) => answer.json())
        .catch(() => EMPTY)
        .then((found) => {
          outline = found;
          if (wanted) setLand(found);
        });
    return () => (wanted = false);
  }, []);
  return echarts && land && ((corner, other) => nameOf(echarts, corner, other));
}

function nameOf(echarts, corner, other) {
  const key = JSON.stringify([corner, other]);
  if (!names.has(key)) {
    names.set(key, `land ${names.size}`);
    echarts.registerMap(names.get(key), cutLand(outline, corner, other));
  }
  return names.get(key);
}
