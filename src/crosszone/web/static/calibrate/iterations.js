import { html, useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { Facts } from "../components/facts.js";
import { curveOption } from "../charts/curve.js";
import { usePercent } from "./words.js";

/** Times of the iterations of a run, and how steady they are. @param {{found: {steps: {step: number[], seconds: number[]}, statistics: any}, children?: any}} given */
export function Iterations({ found, children }) {
  const { t } = useText();
  const { time } = useTime();
  const tokens = useTokens();
  const { step, seconds } = found.steps;
  const words = { name: t("calibrate.column.measured"), step: t("calibrate.iterations.step"), predicted: "", written: time };
  const option = useMemo(() => curveOption(step.map((number, at) => [number, seconds[at]]), null, words, tokens), [found, tokens, t]);
  const table = useMemo(() => ({ columns: [words.step, words.name], rows: step.map((number, at) => [number, seconds[at]]) }), [found, t]);
  return html`
    <${Card} id="calibrate-iterations" title=${t("calibrate.iterations.heading")} aside=${t("calibrate.iterations.about")}>
      <${Statistics} statistics=${found.statistics} />
      ${children}
      ${step.length > 1 && html`<${Chart} name="iterations" option=${option} table=${table} height=${180} label=${t("calibrate.iterations.label", { count: step.length })} />`}
    <//>`;
}

/** A smaller share of the mean is what rounding leaves. */
const NOTHING = 1e-9;

/** Iterations in a few numbers. @param {{statistics: any}} given */
export function Statistics({ statistics: one }) {
  const { t, amount } = useText();
  const { time } = useTime();
  const { pct } = usePercent();
  return html`
    <${Facts} facts=${[
      [t("calibrate.stat.count"), amount(one.count)], [t("calibrate.stat.min_s"), time(one.min_s)], [t("calibrate.stat.max_s"), time(one.max_s)],
      [t("calibrate.stat.mean_s"), time(one.mean_s)], [t("calibrate.stat.std_s"), time(one.std_s < NOTHING * one.mean_s ? 0 : one.std_s)], [t("calibrate.stat.mean_to_min_pct"), pct(one.mean_to_min_pct)],
      [t("calibrate.stat.best_step"), amount(one.best_step)],
    ]} />`;
}
