import { html, useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { groupToken, MOST_GROUPS, scatterOption } from "../charts/predicted-measured.js";
import { usePercent } from "./words.js";

/** Every run: predicted against measured, coloured by source. @param {{runs: any[]}} given */
export function ScatterCard({ runs }) {
  const { t, amount } = useText();
  const { time } = useTime();
  const { signed } = usePercent();
  const tokens = useTokens();
  const counted = useMemo(() => runs.filter((run) => run.counts), [runs]);
  const groups = useMemo(() => grouped(counted, t("calibrate.scatter.others")), [counted, t]);
  const words = { measured: t("calibrate.column.measured"), predicted: t("calibrate.column.predicted") };
  const option = useMemo(() => (counted.length ? scatterOption(groups, { ...words, time, percent: signed }, tokens) : null), [groups, tokens, t]);
  const table = useMemo(() => ({
    columns: [t("calibrate.column.name"), t("calibrate.column.source"), words.measured, words.predicted, t("calibrate.column.off")],
    rows: counted.map((run) => [run.id, run.source, run.measured_s, run.predicted_s, run.error_pct]),
  }), [counted, t]);
  return html`
    <${Card} id="calibrate-scatter" title=${t("calibrate.scatter.heading")} aside=${t("calibrate.scatter.about")}>
      <${Chart} name="predicted-measured" option=${option} table=${table} height=${380} label=${t("calibrate.scatter.label", { count: amount(counted.length) })}>
        <ul class="compare-legend">${groups.map((group, at) => html`<li key=${group.name}><span class="swatch" style=${{ backgroundColor: tokens[groupToken(at)] }}></span>${group.name}</li>`)}</ul>
      <//>
    <//>`;
}

/** Runs by source, the largest first; the small ones together. */
function grouped(runs, others) {
  const found = new Map();
  for (const run of runs) found.set(run.source, [...(found.get(run.source) ?? []), run]);
  const sorted = [...found].sort(([, a], [, b]) => b.length - a.length).map(([name, points]) => ({ name, points }));
  const rest = sorted.slice(MOST_GROUPS).flatMap((group) => group.points);
  return rest.length ? [...sorted.slice(0, MOST_GROUPS), { name: others, points: rest }] : sorted;
}
