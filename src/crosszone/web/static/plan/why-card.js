import { html, useMemo, useState } from "../lib/dom.js";
import { GIVEN, planId, useAnswers } from "../lib/answers.js";
import { usePart } from "../lib/requests.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { waterfallOption } from "../charts/waterfall.js";
import { usePlanWords } from "./words.js";

/** Why the shown plan takes as long as it does: part by part against another, and the reasons the planner gives. */
export function WhyCard() {
  const { t, label } = useText();
  const { plan, plans, chosen } = useAnswers();
  const { nameOf } = usePlanWords();
  const { fields } = useScenario();
  const [wanted, setWanted] = useState(null);
  const all = plans ? [...plans.plans, ...plans.local_updates] : [];
  const others = [...all.map(planId), ...(fields?.strategy ? [GIVEN] : [])].filter((id) => id !== chosen);
  const other = others.includes(wanted) ? wanted : others[0];
  if (!chosen) return null;
  return html`
    <${Card} id="why" title=${t("plan.why.heading")} aside=${t("plan.why.about")}>
      ${other
        ? html`
          <p class="bar">
            <label class="chooser"><span>${t("plan.why.against", { plan: nameOf(chosen) })}</span>
              <select onChange=${(event) => setWanted(event.target.value)}>${others.map((id) => html`<option key=${id} value=${id} selected=${id === other}>${nameOf(id)}</option>`)}</select>
            </label>
          </p>
          <${Waterfall} other=${other} plan=${all.find((one) => planId(one) === other) ?? null} />`
        : html`<p class="empty">${t("plan.why.alone")}</p>`}
      ${plan?.reasons.length > 0 && html`<h3>${t("plan.why.reasons")}</h3><${Sentences} told=${plan.reasons} />`}
      ${plans?.hints.length > 0 && html`<h3>${label("hints_title")}</h3><${Sentences} told=${plans.hints} />`}
    <//>`;
}

/** Sentences of the planner. @param {{told: any[]}} given */
export const Sentences = ({ told }) => html`<ul class="sentences">${told.map((one, at) => html`<li key=${at}>${one.message} <span class="hint">${one.hint}</span></li>`)}</ul>`;

/** The steps of the difference, told by /compare. */
function Waterfall({ other, plan }) {
  const { t, label, amount, language } = useText();
  const { body, chosen } = useAnswers();
  const { nameOf, percent1 } = usePlanWords();
  const tokens = useTokens();
  const planKey = JSON.stringify(plan && [plan.framework, plan.strategy, plan.placement]); // a new search may find the same plan
  const question = useMemo(() => {
    const way = plan && { framework: plan.framework, strategy: plan.strategy, placement: plan.placement };
    return body && { ...body, options: { items: [{ way: body.way ?? null }, { way }] } };
  }, [body, planKey]);
  const { answer, notices } = usePart("compare", question, language);
  const bars = useMemo(() => answer && barsOf(answer, [nameOf(chosen), nameOf(other)], (part) => label(`step_${part}`)), [answer, label]);
  const option = useMemo(() => bars && waterfallOption({ bars, tokens, written: amount }), [bars, tokens, amount]);
  if (notices.length) return html`<p class="empty">${notices[0].message} <span class="hint">${notices[0].hint}</span></p>`;
  if (!answer) return null;
  const chance = answer.sides[1].chance_faster;
  return html`
    <${Chart} option=${option} name="why" height=${Math.max(120, 34 + 24 * bars.length)} label=${t("plan.why.label", { one: nameOf(chosen), other: nameOf(other) })}
      table=${{ columns: [t("plan.why.part"), nameOf(chosen), nameOf(other), t("plan.why.difference")], rows: answer.parts.map(({ name, cells: [a, b] }) => [label(`step_${name}`), a?.value ?? null, b?.value ?? null, b?.difference ?? null]) }}>
      ${chance !== null && html`<p class="table-note" data-chance-other=${chance}>${t("plan.why.chance", { plan: nameOf(other), chance: percent1(chance) })}</p>`}
    <//>`;
}

/** Bars from the first step to the second: each part begins where the one before ended. */
function barsOf({ sides, parts }, names, partName) {
  const differing = parts.map(({ name, cells }) => ({ name, seconds: cells[1]?.difference ?? 0 })).filter(({ seconds }) => Math.abs(seconds) >= 0.001 * sides[0].step_s);
  let end = sides[0].step_s;
  const steps = differing
    .sort((a, b) => Math.abs(b.seconds) - Math.abs(a.seconds))
    .map(({ name, seconds }) => ({ name: partName(name), seconds, start: end, end: (end += seconds) }));
  return [{ name: names[0], seconds: null, start: 0, end: sides[0].step_s }, ...steps, { name: names[1], seconds: null, start: 0, end: sides[1].step_s }];
}
