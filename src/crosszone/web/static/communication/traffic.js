import { html, useMemo, useState } from "../lib/dom.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { timeOption, volumeOption } from "../charts/traffic.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { TrafficLines } from "./lines.js";
import { kindToken, useWords } from "./words.js";

const VIEWS = ["kinds", "lines", "tiers"];
const ROW = 30;

/** Volume, busy and exposed time by kind, by link or by tier, drawn and as a table that opens to its formulas. */
export function Traffic({ prediction, traffic }) {
  const { t, label } = useText();
  const { kind, link } = useWords();
  const tokens = useTokens();
  const [view, setView] = useState("lines");
  const rows = useMemo(() => {
    const named = {
      kinds: (one) => [kind(one.name), one.name],
      tiers: (one) => [link(one.name), null],
      lines: (one) => [`${kind(one.kind)}, ${link(one.link)}`, one.kind],
    };
    return traffic[view].map((one) => {
      const [name, its] = named[view](one);
      return { ...one, name, colour: its ? tokens[kindToken(its)] : tokens.bar };
    });
  }, [traffic, view, kind, link, tokens]);
  const words = { gb: label("traffic_gb"), busy: label("traffic_busy"), exposed: label("traffic_exposed"), share: label("share_pct") };
  const volume = useMemo(() => volumeOption(rows, words, tokens), [rows, tokens]);
  const time = useMemo(() => timeOption(rows, words, tokens), [rows, tokens]);
  const title = label("traffic_title");
  if (!traffic.lines.length) return html`<${Card} id="traffic" title=${title}><p class="empty">${label("no_traffic")}</p><//>`;
  const height = 46 + ROW * rows.length;
  const first = t(`communication.view.${view}`);
  return html`
    <${Card} id="traffic" title=${title}>
      <div class="card-bar">
        <div class="segmented" role="group" aria-label=${t("communication.group_by")}>
          ${VIEWS.map((one) => html`<button type="button" key=${one} aria-pressed=${String(one === view)} onClick=${() => setView(one)}>${t(`communication.view.${one}`)}</button>`)}
        </div>
      </div>
      <div class="pair">
        <div>
          <h3>${t("communication.time")}</h3>
          <${Chart} name="communication-time" option=${time} height=${height} label=${`${title}: ${t("communication.time")}`}
            table=${{ columns: [first, words.busy, words.exposed], rows: rows.map((row) => [row.name, row.busy_s, row.exposed_s]) }} />
        </div>
        <div>
          <h3>${t("communication.volume")}</h3>
          <${Chart} name="communication-volume" option=${volume} height=${height} label=${`${title}: ${t("communication.volume")}`}
            table=${{ columns: [first, words.gb, words.share], rows: rows.map((row) => [row.name, row.bytes_per_step / 1e9, 100 * row.share]) }} />
        </div>
      </div>
      <${TrafficLines} prediction=${prediction} lines=${traffic.lines} />
    <//>`;
}
