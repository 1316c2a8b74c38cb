import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { STEPS, focusField, stepOf, useForm } from "./form.js";

/** Back and Next; Next waits until the step is in order, and says what is missing. @param {{step: string, go: (step: string) => void, failed: boolean, finish: () => void}} given */
export function StepFoot({ step, go, failed, finish }) {
  const { t } = useText();
  const { notices } = useForm();
  const at = STEPS.indexOf(step);
  const last = at === STEPS.length - 1;
  const errors = notices.filter((notice) => notice.level === "error");
  const wrong = errors.filter((notice) => last || (stepOf(notice) ?? step) === step);
  const reason = failed ? t("failed") : wrong.length > 1 ? t("form.not_yet", { count: wrong.length }) : null;
  const lead = (notice) => {
    const place = stepOf(notice);
    if (place && place !== step) go(place);
    setTimeout(() => focusField(notice.field), 50);
  };
  return html`
    <div class="step-foot">
      <div class="reason" id="step-reason" role="status">
        ${reason && html`<p>${reason}</p>`}
        ${wrong.slice(0, 20).map((notice) => html`
          <p><button type="button" class="link" onClick=${() => lead(notice)}>${notice.message}</button> <span class="hint">${notice.hint}</span></p>`)}
      </div>
      <div class="step-buttons">
        <button type="button" disabled=${at === 0} onClick=${() => go(STEPS[at - 1])}>${t("form.back")}</button>
        <button type="button" class="primary" disabled=${failed || wrong.length > 0} aria-describedby="step-reason"
          onClick=${() => (last ? finish() : go(STEPS[at + 1]))}>${last ? t("form.see_plan") : t("form.next")}</button>
      </div>
    </div>`;
}
