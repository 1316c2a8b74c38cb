import { html } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { fieldAt } from "../lib/fields.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { withPin } from "../scenario/pin.js";
import { usePlanWords } from "./words.js";

/** Switches that stand open; all others are folded. */
const MOST_OPEN = 3;

/** What the step rests on where the scenario does not say: a select for each switch, those first that decide most. */
export function SoftwareCard() {
  const { t, label, amount } = useText();
  const { prediction } = useAnswers();
  const { said } = usePlanWords();
  const assumptions = prediction?.basis.assumptions ?? [];
  if (!assumptions.length) return null;
  const { release_month: release, release_gpu: gpu } = prediction.basis;
  const rest = assumptions.slice(MOST_OPEN);
  const rows = (listed) => html`<div class="software-rows">${listed.map((assumption) => html`<${Row} key=${assumption.field} assumption=${assumption} />`)}</div>`;
  return html`
    <${Card} id="software" title=${label("assumptions_title")} aside=${said(gpu ? "assumptions_release_assumed" : "assumptions_release_stated", { release, gpu })}>
      ${rows(assumptions.slice(0, MOST_OPEN))}
      ${rest.length > 0 && html`<details class="software-rest"><summary>${t("plan.software.rest", { count: amount(rest.length) })}</summary>${rows(rest)}</details>`}
    <//>`;
}

/** One switch: its value and where that is from, and the other values with what each would change. */
function Row({ assumption }) {
  const { t, label } = useText();
  const { said } = usePlanWords();
  const { fields, setFields } = useScenario();
  const { field, value, origin, zone, alternatives } = assumption;
  const path = field.split(".");
  const id = `assumption-${field.replace(/[^\w]+/g, "-")}`;
  const word = (one) => (one === true ? label("assumption_on") : one === false ? label("assumption_off") : String(one));
  const change = (percent) => `${percent > 0 ? "+" : ""}${Number(percent.toPrecision(2))}`;
  const others = alternatives.map((other) => said("assumption_change", { value: word(other.value), change: change(other.change_pct) })).join(label("comma"));
  if (zone !== null) {
    // a zone's nodes have a form of their own
    return html`
      <div class="software-row" data-assumption=${field} data-origin=${origin}>
        <span class="software-name">${said("assumption_nic", { zone })}</span>
        <strong>${said(others ? "assumption_line_others" : "assumption_line", { value: word(value), origin: label(`assumption_${origin}`), others })}</strong>
        <span class="hint">${t("plan.software.set_nic")}</span>
      </div>`;
  }
  const given = fieldAt(fields, path) ?? undefined;
  const ofPlan = origin === "stated" && given === undefined;
  const taken = ofPlan ? t("plan.software.of_plan") : label(`assumption_${origin}`);
  const current = said("assumption_line", { value: word(value), origin: taken });
  const choices = [value, ...alternatives.map((other) => other.value)];
  const choose = (text) => setFields(withPin(fields, path, choices.find((choice) => String(choice) === text)), field);
  const open = given === undefined ? current : t(path[0] === "strategy" ? "form.free" : "plan.software.as_usual");
  return html`
    <div class="software-row" data-assumption=${field} data-origin=${ofPlan ? "plan" : origin}>
      <label class="software-name" for=${id}>${label(`assumption_${path.at(-1)}`)}</label>
      <select id=${id} value=${given === undefined ? "" : String(value)} disabled=${!fields} onChange=${(event) => choose(event.target.value)}>
        <option value="" selected=${given === undefined}>${open}</option>
        <option value=${String(value)} selected=${given !== undefined}>${given === undefined ? t("plan.software.confirm", { value: word(value) }) : current}</option>
        ${alternatives.map((other) => html`
          <option key=${String(other.value)} value=${String(other.value)}>${t("plan.software.other", { value: word(other.value), change: change(other.change_pct) })}</option>`)}
      </select>
      <span class="hint">${others || "\u00a0"}</span>
    </div>`;
}
