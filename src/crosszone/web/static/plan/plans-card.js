import { html, useState } from "../lib/dom.js";
import { GIVEN, OWN, planId, useAnswers } from "../lib/answers.js";
import { usePart } from "../lib/requests.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { TableFrame } from "../components/table-frame.js";
import { PlanDetails } from "./plan-details.js";
import { PlanRow } from "./plan-row.js";
import { usePlanWords } from "./words.js";

const WORDS = ["rank", "crossing", "framework", "degrees"];
const HEADS = [...WORDS, "step", "tokens", "usd", "memory", "chance"];

/** The ranked plans, those with local updates apart, and the strategy as the scenario writes it; a click shows one. @param {{places: any}} given */
export function PlansCard({ places }) {
  const { t, label, language } = useText();
  const { fields, body } = useScenario();
  const answers = useAnswers();
  const { plans, chosen, own, prediction, objective } = answers;
  const { short } = usePlanWords();
  const written = fields?.strategy && chosen !== GIVEN ? body : null;
  const given = usePart("written", written, language);
  const [open, setOpen] = useState(false);
  if (!plans && !fields?.strategy) return null;

  const asWritten = chosen === GIVEN ? prediction : given.asked === body ? given.answer : null;
  const row = (id, plan, found, crossing, chance) => html`
    <${PlanRow} key=${id} id=${id} plan=${plan} prediction=${found} crossing=${crossing} chance=${chance} />`;
  const heads = objective === "time" ? HEADS : [...HEADS.slice(0, 4), "value", ...HEADS.slice(4)];
  const title = (head) => (head === "value" ? label(`value_${objective}`) : t(`plan.table.${head}`));
  const ranked = (plan) => row(planId(plan), plan, plan.prediction, null, plan.chance);
  return html`
    <${Card} id="plans" title=${t("plan.table.heading", { objective: label(`objective_${objective}`) })} aside=${t("plan.table.about")}>
      <${TableFrame} label=${t("plan.table.label")}>
        <thead><tr>${heads.map((head) => html`<th scope="col" key=${head} class=${WORDS.includes(head) ? "" : "number"}>${title(head)}</th>`)}</tr></thead>
        <tbody>
          ${plans?.plans.map(ranked)}
          ${!plans?.plans.length && html`<tr><td colspan=${heads.length}>${label("plans_none")}</td></tr>`}
        </tbody>
        ${plans?.local_updates.length > 0 && html`
          <tbody class="apart">
            <tr><th scope="colgroup" colspan=${heads.length} class="apart-head">${label("local_title")}</th></tr>
            ${plans.local_updates.map(ranked)}
          </tbody>`}
        ${(own || fields?.strategy) && html`
          <tbody class="apart">
            ${own && row(OWN, null, chosen === OWN ? prediction : null, t("plan.shown_own", { rank: own.moved.base, plan: short(own.plan) }), null)}
            ${fields?.strategy && row(GIVEN, null, asWritten, t("plan.table.given"), null)}
          </tbody>`}
      <//>
      ${written && given.notices.length > 0 && html`<p class="table-note">${t("plan.as_written")}: ${given.notices[0].message} <span class="hint">${given.notices[0].hint}</span></p>`}
      <p class="table-note">${label("caption_chance_pct")}</p>
      <${LocalAssumptions} plans=${plans} />
      <${AboveMeasured} plans=${plans} />
      <details class="settings" open=${open} onToggle=${(event) => setOpen(event.currentTarget.open)}>
        <summary>${t("plan.details.heading")}</summary>
        ${open && html`<${PlanDetails} places=${places} />`}
      </details>
    <//>`;
}

/** What plans with local updates are assumed to cost in loss. */
function LocalAssumptions({ plans }) {
  const told = (plans?.local_updates ?? []).flatMap(({ prediction, reasons }) => [...prediction.warnings, ...reasons]).filter(({ code }) => code === "loss_assumed");
  const words = [...new Set(told.map(({ message }) => message))];
  return html`${words.map((message) => html`<p class="table-note" key=${message}>${message}</p>`)}`;
}

const ABOVE_MEASURED = ["mfu_above_measured", "mfu_range_above_measured", "mfu_above_gpu", "mfu_above_family"];

/** Plans whose utilisation is above the best that was measured, each with that run. */
function AboveMeasured({ plans }) {
  const { said } = usePlanWords();
  const lines = [...(plans?.plans ?? []), ...(plans?.local_updates ?? [])].flatMap((plan) =>
    plan.prediction.warnings.filter(({ code }) => ABOVE_MEASURED.includes(code)).map(({ message }) => ({ id: planId(plan), message })),
  );
  return html`${lines.map(({ id, message }) => html`<p class="table-note" data-above=${id} key=${id}>${said("utilisation_line", { rank: id, message })}</p>`)}`;
}
