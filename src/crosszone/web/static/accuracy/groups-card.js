import { html, useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { groupErrorsHeight, groupErrorsOption } from "../charts/group-errors.js";
import { usePercent } from "../calibrate/words.js";

const GROUPS = ["by_knowledge", "by_gpu", "by_source"];
const NARROW = "(max-width: 560px)";

/** Errors by what was known, by GPU family and by source, of the manner that is chosen. @param {{summary: any, kind: string | undefined, choose: (kind: string | null) => void}} given */
export function GroupsCard({ summary, kind, choose }) {
  const { t } = useText();
  const [first] = summary.readings;
  const chosen = summary.readings.find((reading) => reading.kind === kind) ?? first;
  return html`
    <${Card} id="accuracy-groups" title=${t("accuracy.groups.heading")} aside=${t("accuracy.groups.about")}>
      <div class="card-bar">
        <div class="segmented accuracy-readings" role="group" aria-label=${t("accuracy.column.reading")}>
          ${summary.readings.map((reading) => html`
            <button type="button" key=${reading.kind} aria-pressed=${String(reading === chosen)} onClick=${() => choose(reading === first ? null : reading.kind)}>${t(`accuracy.reading.${reading.kind}`)}</button>`)}
        </div>
      </div>
      <div class="accuracy-groups">
        ${GROUPS.map((name) => html`<${GroupErrors} key=${`${chosen.kind} ${name}`} name=${name} groups=${chosen[name]} />`)}
      </div>
    <//>`;
}

/** @param {{name: string, groups: any[]}} given */
function GroupErrors({ name, groups }) {
  const { t } = useText();
  const { pct, signed, tick } = usePercent();
  const tokens = useTokens();
  const words = { error: t("accuracy.groups.error"), mean: t("accuracy.column.mean_pct"), median: t("accuracy.column.median_pct"), rows: t("accuracy.column.rows") };
  const called = (group) => (name === "by_knowledge" ? t(`accuracy.knowledge.${group}`) : group);
  const option = useMemo(() => groupErrorsOption(groups, { ...words, called, percent: pct, tick }, tokens, matchMedia(NARROW).matches), [groups, tokens, t]);
  const table = useMemo(() => ({
    columns: [t(`accuracy.groups.${name}`), ...["rows", "mean_pct", "median_pct", "bias_pct", "inside_pct", "width_pct"].map((key) => t(`accuracy.column.${key}`))],
    rows: groups.map((group) => [called(group.name), group.rows, pct(group.mean_pct), pct(group.median_pct), signed(group.bias_pct), pct(group.inside_pct), pct(group.width_pct)]),
  }), [groups, t]);
  return html`
    <div data-groups=${name}>
      <h3>${t(`accuracy.groups.${name}`)}</h3>
      <${Chart} name=${`accuracy-${name}`} option=${option} table=${table} height=${groupErrorsHeight(groups)} label=${t("accuracy.groups.label", { by: t(`accuracy.groups.${name}`) })} />
    </div>`;
}
