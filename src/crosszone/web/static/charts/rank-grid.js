import { html, useEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { Chart } from "../components/chart.js";
import { cellOf, layoutOf, placeAt } from "./rank-layout.js";
import { zoneColour } from "./zone-colours.js";

const SHAPE = "rank-cells";
const GUTTER = { wide: 132, narrow: 30 };
let registered = false;

function registerCells(library) {
  if (registered) return;
  registered = true;
  const buildPath = (path, { cells, size }) => {
    for (let at = 0; at < cells.length; at += 2) path.rect(cells[at], cells[at + 1], size, size);
  };
  library.graphic.registerShape(SHAPE, library.graphic.extendShape({ shape: { cells: [], size: 1 }, buildPath }));
}

/**
 * Every rank as a cell: bands of stages, blocks of replicas, coloured by zone. One path a zone, so that 16,384 are drawn at once.
 * @param {{ranks: any, chosen: number | null, choose: (rank: number) => void, point: (rank: number | null) => void, table: any}} given
 *   `point`: told which rank the mouse is at
 */
export function RankGrid({ ranks, chosen, choose, point, table }) {
  const { t, amount } = useText();
  const tokens = useTokens();
  const frame = useRef(null);
  const width = useWidth(frame);
  const gutter = width < 560 ? GUTTER.narrow : GUTTER.wide;
  const { columns, degrees, stages, zones } = ranks;
  const layout = useMemo(() => layoutOf(degrees, width, gutter), [ranks, width, gutter]);
  const rankAt = useMemo(() => {
    const key = ({ tp, pp, dp, cp }) => ((pp * degrees.dp + dp) * degrees.cp + cp) * degrees.tp + tp;
    const found = new Map(columns.rank.map((rank, at) => [key({ tp: columns.tp[at], pp: columns.pp[at], dp: columns.dp[at], cp: columns.cp[at] }), rank]));
    return (x, y) => {
      const place = placeAt(layout, x, y, degrees.tp);
      return place && place.dp < degrees.dp && place.cp < degrees.cp ? found.get(key(place)) : undefined;
    };
  }, [ranks, layout]);

  const option = useMemo(() => {
    const size = layout.size - (layout.size >= 5 ? 1 : layout.size >= 3 ? 0.5 : 0);
    const cells = zones.map(() => []);
    columns.rank.forEach((rank) => cells[columns.zone[rank]].push(...cellOf(layout, columns, rank, degrees.tp)));
    const paths = cells.map((own, zone) => ({ type: SHAPE, shape: { cells: own, size }, style: { fill: zoneColour(tokens, zone) } }));
    const numbers = layout.size >= 22 ? columns.rank.map((rank) => {
      const [x, y] = cellOf(layout, columns, rank, degrees.tp);
      return { type: "text", silent: true, style: { text: String(rank), x: x + size / 2, y: y + size / 2, align: "center", verticalAlign: "middle", fill: tokens["on-block"], fontSize: 10 } };
    }) : [];
    const names = stages.map(({ stage, layers }) => ({
      type: "text", silent: true,
      style: { text: gutter === GUTTER.narrow ? `p${stage}` : t("ranks.stage", { stage, layers }), x: gutter - 8, y: stage * layout.band + Math.min(layout.band, 24) / 2 - 1, align: "right", verticalAlign: "middle", fill: tokens.quiet, fontSize: layout.band < 12 ? 8 : 11 },
    }));
    const named = layout.band >= 8 ? names : names.filter((_, at) => at % 2 === 0);
    const [x, y] = chosen === null || chosen >= columns.rank.length ? [0, 0] : cellOf(layout, columns, chosen, degrees.tp);
    const mark = chosen === null || chosen >= columns.rank.length ? [] : [{ type: "rect", silent: true, z2: 10, shape: { x: x - 1, y: y - 1, width: size + 2, height: size + 2 }, style: { fill: "none", stroke: tokens.text, lineWidth: 2 } }];
    return {
      series: [{ type: "custom", coordinateSystem: "none", progressive: 0, emphasis: { disabled: true }, data: [0], renderItem: () => ({ type: "group", children: [...paths, ...numbers, ...named, ...mark] }) }],
    };
  }, [ranks, layout, tokens, t, chosen]);

  const click = (event) => {
    const rank = rankAt(event.event.offsetX, event.event.offsetY);
    if (rank !== undefined) choose(rank);
  };
  return html`
    <div class="rank-grid" ref=${frame} onMouseMove=${(event) => event.target instanceof HTMLCanvasElement && point(rankAt(event.offsetX, event.offsetY) ?? null)} onMouseLeave=${() => point(null)}>
      <${Chart} name="ranks" label=${t("ranks.label", { ranks: amount(ranks.ranks) })} option=${width ? option : null} height=${layout.height} table=${table} prepare=${registerCells} onEvents=${{ click }} />
    </div>`;
}

/** The width of an element in pixels, 0 until it is known. */
function useWidth(element) {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const watcher = new ResizeObserver(([entry]) => setWidth(Math.round(entry.contentRect.width)));
    watcher.observe(element.current);
    return () => watcher.disconnect();
  }, []);
  return width;
}
