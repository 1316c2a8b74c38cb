import { html, useEffect, useState } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useText } from "../lib/text.js";
import { usePlanWords } from "./words.js";

/** Milliseconds a search may take before it is shown: most are done by then. */
const PATIENCE_MS = 250;

/** How far the search is, with a way to stop it; how sure the order of the plans is once it is done. */
export function Progress() {
  const { t, label } = useText();
  const { planning, plans, cancel, stopped, resume } = useAnswers();
  const searching = planning !== null;
  const [late, setLate] = useState(false);
  useEffect(() => {
    if (!searching) return setLate(false);
    const timer = setTimeout(() => setLate(true), PATIENCE_MS);
    return () => clearTimeout(timer);
  }, [searching]);

  if (stopped)
    return html`<p class="plan-line" role="status">${t("plan.stopped")} <button type="button" class="link" onClick=${resume}>${t("plan.resume")}</button></p>`;
  if (searching && (late || !plans))
    return html`
      <p class="plan-line" role="status">
        <progress max=${Math.max(planning.of, 1)} value=${planning.done} aria-label=${label(`progress_${planning.what}`)}></progress>
        ${label(`progress_${planning.what}`)}
        <button type="button" class="link" onClick=${cancel}>${t("plan.cancel")}</button>
      </p>`;
  return html`<${Sureness} />`;
}

/** How much was looked at, and the chance that the best plan is faster than the next, or than the one shown. */
function Sureness() {
  const { t, amount } = useText();
  const { plans, plan } = useAnswers();
  const { said, percent1 } = usePlanWords();
  if (!plans) return html`<p class="plan-line"></p>`;
  const best = plan === null || plan === plans.plans[0];
  const chance = (best ? plans.plans[1] : plan)?.chance ?? null;
  return html`
    <p class="plan-line">
      ${chance !== null && html`<span data-chance=${chance}>${t(best ? "plan.chance" : "plan.chance_shown", { chance: percent1(chance) })}</span> `}
      <span class="quiet-text">
        ${said("plans_counts", {
          evaluated: amount(plans.evaluated), scored: amount(plans.scored), feasible: amount(plans.feasible),
          simulated: amount(plans.simulated), seconds: amount(plans.seconds),
        })}
      </span>
      ${!plans.complete && html` <span class="wrong">${t("plan.incomplete")}</span>`}
    </p>`;
}
