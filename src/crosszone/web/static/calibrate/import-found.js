import { html, useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { Card } from "../components/card.js";
import { Facts } from "../components/facts.js";
import { TableFrame } from "../components/table-frame.js";
import { Gantt } from "../charts/gantt.js";
import { Differences } from "../timeline/differences.js";
import { useFigures } from "../compare/figures.js";
import { Iterations } from "./iterations.js";
import { Remarks } from "./remarks.js";
import { SaveResult } from "./save-result.js";

const NONE = new Set();
const WORDS = ["first", "last", "best"];

/**
 * A run as a file tells it: its iterations, the phases of the chosen one, its timeline, the difference from the prediction.
 * @param {{found: any, iteration: string, choose: (word: string) => void, bodyOf: (name: string) => any, change: any}} given
 */
export function ImportFound({ found, iteration, choose, bodyOf, change }) {
  const { t, framework } = useText();
  const { time } = useTime();
  const { figure } = useFigures();
  const groups = useMemo(() => [...new Set((found.view?.lanes ?? []).map((lane) => lane.group))], [found]);
  const figures = Object.entries(found.figures).filter(([key, value]) => key !== "breakdown_s" && value !== null);
  const phases = found.steps.step.length > 1 ? t("calibrate.found.phases", { step: found.step }) : t("calibrate.found.phases_only");
  const meta = Object.entries(found.meta).slice(0, 24);
  return html`
    ${found.steps.step.length > 1 && html`
      <${Iterations} found=${found}><${Choose} found=${found} iteration=${iteration} choose=${choose} /><//>`}
    <${Card} id="calibrate-import" title=${t("calibrate.found.heading", { name: found.name })} aside=${t(`calibrate.format.${found.format}`)}>
      <${Facts} facts=${figures.map(([key, value]) => [key === "framework" ? t("column.framework") : t(`compare.figure.${key}`), typeof value === "number" ? figure(key, value) : key === "framework" ? framework(value) : value])} />
      <${Remarks} notices=${found.notices} />
      ${Object.keys(found.phases_s).length > 0 && html`
        <h3 class="calibrate-sub">${phases}</h3>
        <div class="calibrate-narrow"><${TableFrame} label=${phases}>
          <tbody class="capital">${Object.entries(found.phases_s).map(([phase, seconds]) => html`<tr key=${phase} data-phase=${phase}><th scope="row">${t(`calibrate.phase.${phase}`)}</th><td class="number">${time(seconds)}</td></tr>`)}</tbody>
        <//></div>`}
      ${found.view && html`
        <${Gantt} name="imported" label=${t("timeline.label", { lanes: found.view.lanes.length, step: time(found.view.step_s) })} view=${found.predicted} measured=${found.view} groups=${groups} hidden=${NONE} />`}
      ${meta.length > 0 && html`
        <details class="settings"><summary>${t("calibrate.found.meta")}</summary><dl class="pairs">${meta.map(([key, value]) => html`<div key=${key}><dt>${key}</dt><dd>${String(value)}</dd></div>`)}</dl></details>`}
      <${SaveResult} key=${found.name} start=${found.name} bodyOf=${bodyOf} change=${change} />
    <//>
    ${found.difference && html`<${Differences} difference=${found.difference} />`}`;
}

/** Which iteration is shown and saved. */
function Choose({ found, iteration, choose }) {
  const { t, amount } = useText();
  const { time } = useTime();
  const { step, seconds } = found.steps;
  return html`
    <div class="bar" role="group" aria-label=${t("calibrate.iterations.choose")}>
      <div class="segmented">
        ${WORDS.map((word) => html`<button type="button" key=${word} aria-pressed=${String(iteration === word)} onClick=${() => choose(word)}>${t(`compare.iteration_${word}`)}</button>`)}
      </div>
      ${step.length <= 500 && html`
        <select aria-label=${t("calibrate.iterations.choose")} value=${String(found.step)} onChange=${(event) => choose(event.target.value)}>
          ${step.map((number, at) => html`<option key=${number} value=${String(number)} selected=${number === found.step}>${t("timeline.measured.step_option", { step: amount(number), time: time(seconds[at]) })}</option>`)}
        </select>`}
    </div>`;
}
