import { html, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { Card } from "../components/card.js";
import { More } from "../components/more.js";
import { Refusal } from "./refusal.js";

/**
 * A measured trace to put beside the prediction: opened from a file, step by step, with what was wrong with it.
 * @param {{trace: {name: string, text: string, step: number | null} | null, setTrace: (trace: any) => void, measured: any,
 *   notices: import("../lib/api.js").Notice[], busy: boolean}} given
 */
export function MeasuredTrace({ trace, setTrace, measured, notices, busy }) {
  const { t } = useText();
  const [over, setOver] = useState(false);
  const take = async (file) => file && setTrace({ name: file.name, text: await file.text(), step: null });
  const picked = async (event) => {
    const field = event.target;
    await take(field.files[0]);
    field.value = ""; // so that the same file can be picked again once it is corrected
  };
  const dropped = (event) => {
    event.preventDefault();
    setOver(false);
    take(event.dataTransfer.files[0]);
  };
  const dragged = (event) => {
    event.preventDefault();
    setOver(true);
  };
  return html`
    <${Card} id="timeline-measured" title=${t("timeline.measured.heading")} aside=${t("timeline.measured.about")}>
      <div class=${`timeline-drop${over ? " over" : ""}`} onDragOver=${dragged} onDragLeave=${() => setOver(false)} onDrop=${dropped}>
        <label class="file-button">${t("timeline.measured.open")}
          <input type="file" class="visually-hidden" accept=".json,.csv,application/json,text/csv" onChange=${picked} />
        </label>
        ${trace
          ? html`<span>${trace.name}</span><button type="button" class="small" onClick=${() => setTrace(null)}>${t("timeline.measured.drop")}</button>`
          : html`<span class="hint">${t("timeline.measured.empty")}</span>`}
        ${busy && html`<span class="hint" role="status">${t("timeline.measured.reading")}</span>`}
        ${measured && html`<${Steps} measured=${measured} choose=${(step) => setTrace({ ...trace, step })} />`}
      </div>
      <${Refusal} notices=${notices} />
      ${measured?.notices.length > 0 && html`
        <details class="notices warning" open>
          <summary><h3>${t("timeline.measured.notices", { count: measured.bad_rows })}</h3></summary>
          <ul><${More} most=${5} items=${measured.notices} row=${(notice, at) => html`<li key=${at}>${notice.message} <span class="hint">${notice.hint}</span></li>`} /></ul>
        </details>`}
    <//>`;
}

/** Which step of the trace is drawn. */
function Steps({ measured, choose }) {
  const { t, amount } = useText();
  const { time } = useTime();
  const { step, seconds } = measured.steps;
  const at = step.indexOf(measured.step);
  const typed = (event) => Number.isInteger(event.target.valueAsNumber) && choose(event.target.valueAsNumber);
  const button = (key, to) => html`<button type="button" class="small" disabled=${at === to || to < 0 || to >= step.length} onClick=${() => choose(step[to])}>${t(`timeline.measured.${key}`)}</button>`;
  return html`
    <span class="timeline-steps" role="group" aria-label=${t("timeline.measured.step")}>
      ${button("first", 0)}${button("previous", at - 1)}
      ${step.length <= 500
        ? html`<select aria-label=${t("timeline.measured.step")} value=${String(measured.step)} onChange=${(event) => choose(Number(event.target.value))}>
            ${step.map((number, index) => html`<option key=${number} value=${String(number)}>${t("timeline.measured.step_option", { step: amount(number), time: time(seconds[index]) })}</option>`)}
          </select>`
        : html`<input type="number" min=${step[0]} max=${step.at(-1)} value=${measured.step} aria-label=${t("timeline.measured.step")} onChange=${typed} />`}
      ${button("next", at + 1)}${button("last", step.length - 1)}
      <span class="hint">${t("timeline.measured.of", { at: amount(at + 1), count: amount(step.length) })}</span>
    </span>`;
}
