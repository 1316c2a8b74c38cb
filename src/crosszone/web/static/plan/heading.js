import { html } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useText } from "../lib/text.js";
import { usePlanWords } from "./words.js";

/** Which plan is shown, in one line. */
export function Heading() {
  const { t } = useText();
  const { plan, plans, chosen, own, prediction } = useAnswers();
  const { short, crossing, degrees, framework } = usePlanWords();
  let words = t("plan.heading");
  if (plan) {
    const count = plan.kind === "local update" && plans.local_updates.includes(plan) ? plans.local_updates.length : plans.plans.length;
    words = t(plans.local_updates.includes(plan) ? "plan.shown_local" : "plan.shown", { rank: plan.rank, count, plan: short(plan), crossing: crossing(plan) });
  } else if (chosen === "own") words = t("plan.shown_own", { rank: own.moved.base, plan: short(own.plan) });
  else if (chosen && prediction) words = t("plan.shown_given", { plan: `${framework(prediction.framework)} ${degrees(prediction.strategy)}` });
  return html`<h2 class="plan-heading" data-shown=${chosen ?? ""}>${words}</h2>`;
}
