import { html } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { More } from "../components/more.js";
import { TableFrame } from "../components/table-frame.js";
import { usePlanWords } from "./words.js";

/** What is not among the plans, which GPUs stay idle, and why. */
export function RejectedCard() {
  const { t, label, amount } = useText();
  const { plans, plan } = useAnswers();
  const { said, framework } = usePlanWords();
  if (!plans) return null;
  const family = (name) => {
    const [first, rest] = name.split(": ");
    return rest === "memory" ? said("family_memory", { framework: framework(first) }) : name === "bound" ? label("family_bound") : name;
  };
  return html`
    <${Card} id="rejected" title=${label("rejected_title")} aside=${t("plan.rejected.about")}>
      <${TableFrame} label=${label("rejected_title")}>
        <thead><tr><th scope="col">${t("plan.rejected.family")}</th><th scope="col" class="number">${t("plan.rejected.count")}</th><th scope="col">${t("plan.rejected.reason")}</th></tr></thead>
        <tbody class="wrapped">
          <${More} most=${8} items=${plans.rejected} columns=${3} row=${(one, at) => html`
            <tr key=${at}><th scope="row">${family(one.family)}</th><td class="number">${amount(one.count)}</td><td>${one.reason.message} <span class="hint">${one.reason.hint}</span></td></tr>`} />
        </tbody>
      <//>
      ${plan && html`
        <h3>${t("placement.idle")}</h3>
        ${plan.idle.length
          ? html`<ul class="sentences"><${More} most=${8} items=${plan.idle} row=${(idle) => html`<li><strong>${idle.zone}</strong> ${t("plan.move.gpus", { count: amount(idle.count) })}: ${idle.reason.message} <span class="hint">${idle.reason.hint}</span></li>`} /></ul>`
          : html`<p class="quiet-text">${t("placement.none_idle")}</p>`}`}
    <//>`;
}
