import { html, useEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { kindToken, mapOption } from "../charts/map.js";
import { useLand } from "./land.js";
import { LinkTraffic } from "./link-traffic.js";
import { pairsOf, runs } from "./map-data.js";
import { useMapWords } from "./map-words.js";

const HEIGHT = 360;
/** Of a single zone whose place is not known: there is little to see. */
const LOW = 150;

/** Zones and links on the land, with what a step sends over each link. @param {{places: any}} given what each zone holds; null: not known yet */
export function MapCard({ places }) {
  const { t, label, amount } = useText();
  const { description } = useScenario();
  const { traffic } = useAnswers();
  const tokens = useTokens();
  const land = useLand();
  const frame = useRef(null);
  const width = useWidth(frame);
  const words = useMapWords();
  const cluster = description?.cluster;
  const height = cluster?.zones.length === 1 && cluster.zones[0].lat === null ? LOW : HEIGHT;
  const zoneKey = JSON.stringify([cluster?.zones, places?.zones]);
  const linkKey = JSON.stringify([cluster?.links, traffic?.links]);

  const drawn = useMemo(() => {
    if (!cluster) return null;
    const pairs = pairsOf(cluster, traffic);
    return {
      pairs,
      zones: cluster.zones.map((zone) => words.zone(zone, places?.zones.find(({ name }) => name === zone.name), places?.stages.length)),
      lines: pairs.flatMap((pair) => words.lines(pair)),
      labels: pairs.map((pair) => words.pairLabel(pair)),
    };
  }, [zoneKey, linkKey, words]);
  const option = useMemo(
    () => (drawn && width && land ? mapOption({ zones: drawn.zones, lines: drawn.lines, labels: drawn.labels, width, height, tokens, land }) : null),
    [drawn, width, height, tokens, land === null],
  );
  if (!cluster) return null;
  const kinds = [...new Set((traffic?.links ?? []).map(({ dominant }) => dominant))];
  const table = {
    columns: [t("plan.map.zone"), t("plan.map.place"), t("plan.map.gpus"), t("plan.map.used"), t("plan.map.stages"), t("plan.map.replicas")],
    rows: cluster.zones.map((zone, at) => {
      const held = places?.zones[at];
      return [zone.name, zone.place ?? zone.region ?? "-", zone.gpus, held?.used ?? "-", held ? runs(held.stages) : "-", held?.replicas ?? "-"];
    }),
  };
  return html`
    <${Card} id="map" title=${t("plan.map.heading")} aside=${t("plan.map.about")}>
      <div ref=${frame} class="map-frame" style=${{ minHeight: `${height + 30}px` }}>
        ${land && html`
          <${Chart} option=${option} height=${height} name="map"
            label=${t("plan.map.label", { zones: amount(cluster.zones.length), links: amount(drawn.pairs.filter(({ bytes }) => bytes > 0).length) })} table=${table}>
            <ul class="map-legend" aria-label=${t("plan.map.legend")}>
              ${kinds.map((kind) => html`<li key=${kind}><span class=${`swatch ${kindToken(kind)}`}></span>${label(`kind_${kind}`)}</li>`)}
              ${drawn.pairs.some(({ bytes, known }) => known && !bytes) && html`<li><span class="swatch unused"></span>${t("plan.map.unused")}</li>`}
            </ul>
          <//>`}
      </div>
      <${LinkTraffic} pairs=${drawn.pairs} />
    <//>`;
}

/** The width of an element, 0 until it is known. */
function useWidth(place) {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!place.current) return undefined;
    const watcher = new ResizeObserver(([entry]) => setWidth(Math.round(entry.contentRect.width)));
    watcher.observe(place.current);
    return () => watcher.disconnect();
  }, [place.current]);
  return width;
}
