import { html, useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { steadinessHeight, steadinessOption } from "../charts/steadiness.js";
import { jobNames, usePercent } from "./words.js";

const COLUMNS = ["count", "min_s", "max_s", "mean_s", "std_s", "mean_to_min_pct"];

/** How steady the iterations of runs are. @param {{runs: any[]}} given */
export function SteadinessCard({ runs }) {
  const { t } = useText();
  const { time } = useTime();
  const { pct, tick } = usePercent();
  const tokens = useTokens();
  const narrow = useMemo(() => matchMedia("(max-width: 700px)").matches, []);
  const named = useMemo(() => {
    const names = jobNames(runs, narrow);
    return runs.map((run, at) => ({ ...run, name: names[at] }));
  }, [runs, narrow]);
  const say = { above: t("calibrate.steady.above"), time, percent: pct, tick, mean: t("calibrate.stat.mean_to_min_pct") };
  const option = useMemo(() => steadinessOption(named, say, tokens, narrow), [named, tokens, t]);
  const table = useMemo(() => ({
    columns: [t("calibrate.column.name"), ...COLUMNS.map((key) => t(`calibrate.stat.${key}`))],
    rows: named.map((run) => [run.name.replace("\n", " · "), ...COLUMNS.map((key) => run[key])]),
  }), [named, t]);
  return html`
    <${Card} id="calibrate-steady" title=${t("calibrate.steady.heading")} aside=${t("calibrate.steady.about")}>
      <${Chart} name="iteration-stability" option=${option} table=${table} height=${steadinessHeight(named)} label=${t("calibrate.steady.label")} />
    <//>`;
}
