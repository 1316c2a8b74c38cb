import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { STEPS, stepOf, useForm } from "./form.js";

/** The steps with how each stands; one may go to any of them. @param {{step: string, go: (step: string) => void}} given */
export function StepNav({ step, go }) {
  const { t } = useText();
  const { notices } = useForm();
  const errors = notices.filter((notice) => notice.level === "error");
  return html`
    <nav aria-label=${t("form.steps")}>
      <ol class="steps">
        ${STEPS.map((one, index) => {
          const count = errors.filter((notice) => stepOf(notice) === one).length;
          return html`
            <li key=${one}>
              <button type="button" aria-current=${step === one ? "step" : null} class=${count ? "wrong" : "right"} onClick=${() => go(one)}>
                <span class="sign" aria-hidden="true">${count || (step === one ? index + 1 : "✓")}</span>
                <span>${t(`form.step_${one}`)}</span>
                <span class="visually-hidden">${count ? t("form.errors", { count }) : t("form.fine")}</span>
              </button>
            </li>`;
        })}
      </ol>
    </nav>`;
}
