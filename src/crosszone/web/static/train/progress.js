import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { Facts } from "../components/facts.js";

/** Steps done, and the main figures beside what was predicted. @param {{task: any}} given */
export function TaskProgress({ task }) {
  const { t, amount, framework } = useText();
  const { time, range } = useTime();
  const { measured, prediction, strategy } = task;
  const steps = task.request.job?.steps ?? 1000;
  const done = measured ? Math.min(steps, measured.step) : 0;
  const short = (value) => (value === null || value === undefined ? "-" : amount(Number(value.toPrecision(4))));
  const facts = [
    [t("train.fact.step"), t("train.step_of", { step: amount(done), steps: amount(steps) })],
    measured && [t("train.fact.loss"), `${short(measured.first_loss)} → ${short(measured.loss)}`],
    measured && [t("train.fact.step_s"), html`<span class=${measured.in_band === false ? "train-out" : ""}>${time(measured.step_s)}</span>`],
    prediction && [t("train.fact.predicted_step"), `${time(prediction.step_time_s.expected)} (${range(prediction.step_time_s.low, prediction.step_time_s.high)})`],
    measured && [t("train.fact.tokens"), short(measured.tokens_per_s)],
    prediction && [t("train.fact.predicted_tokens"), short(prediction.tokens_per_s.expected)],
    task.framework && [t("train.framework"), framework(task.framework)],
    strategy && [t("train.strategy"), t("train.degrees", { dp: strategy.dp, pp: strategy.pp, tp: strategy.tp })],
    task.slowdown && [t("train.fact.slowdown"), `× ${short(task.slowdown)}`],
  ].filter(Boolean);
  return html`
    <progress class="train-progress" max=${steps} value=${done} aria-label=${t("train.fact.step")}></progress>
    <${Facts} facts=${facts} />`;
}
