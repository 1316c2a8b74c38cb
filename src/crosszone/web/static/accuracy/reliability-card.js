import { html, useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { groupToken } from "../charts/predicted-measured.js";
import { reliabilityOption } from "../charts/reliability.js";
import { usePercent } from "../calibrate/words.js";

/** What ranges are to hold and what they hold. @param {{summary: any}} given */
export function ReliabilityCard({ summary }) {
  const { t } = useText();
  const { pct, tick } = usePercent();
  const tokens = useTokens();
  const readings = useMemo(() => summary.readings.map((reading) => ({ name: t(`accuracy.reading.${reading.kind}`), coverage: reading.coverage })), [summary, t]);
  const words = { nominal: t("accuracy.reliability.nominal"), inside: t("accuracy.reliability.inside") };
  const option = useMemo(() => reliabilityOption(readings, { ...words, percent: pct, tick }, tokens), [readings, tokens]);
  const nominal = readings[0].coverage.map((point) => point.nominal_pct);
  const table = useMemo(() => ({
    columns: [t("accuracy.column.reading"), ...nominal.map(tick)],
    rows: readings.map((reading) => [reading.name, ...reading.coverage.map((point) => pct(point.inside_pct))]),
  }), [readings]);
  return html`
    <${Card} id="accuracy-reliability" title=${t("accuracy.reliability.heading")} aside=${t("accuracy.reliability.about")}>
      <${Chart} name="reliability" option=${option} table=${table} height=${320} label=${t("accuracy.reliability.label")}>
        <ul class="compare-legend">${readings.map((reading, at) => html`<li key=${reading.name}><span class="swatch" style=${{ backgroundColor: tokens[groupToken(at)] }}></span>${reading.name}</li>`)}</ul>
      <//>
    <//>`;
}
