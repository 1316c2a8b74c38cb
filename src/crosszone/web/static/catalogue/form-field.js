import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/** Names of an entry's figures do not say that they are of its architecture. */
const figure = (path) => `figure.${path.replace(/^architecture\./, "")}`;

/**
 * One field with what is wrong with it.
 * @param {{field: import("./form-values.js").FormField, value: any, notice: any, set: (path: string, value: any) => void}} given
 */
export function Field({ field, value, notice, set }) {
  const { t } = useText();
  const id = `field-${field.path}`;
  const about = {
    id,
    "aria-invalid": String(Boolean(notice)),
    "aria-describedby": notice ? `${id}-error` : null,
  };
  if (field.kind === "choices") {
    return html`
      <fieldset class="form-field whole choices" id=${id}>
        <legend>${t(figure(field.path))}</legend>
        ${field.choices.map((choice) => html`
          <label key=${choice}><input type="checkbox" checked=${value.includes(choice)}
            onChange=${(event) => set(field.path, field.choices.filter((one) => (one === choice ? event.target.checked : value.includes(one))))} />${choice}</label>`)}
        <${FieldError} notice=${notice} id=${`${id}-error`} />
      </fieldset>`;
  }
  const whole = field.path === "notes" || field.kind === "names" ? "whole" : "";
  return html`
    <div class=${`form-field ${whole}`}>
      <label for=${id}>${t(figure(field.path))}${field.required && html`<span class="required" aria-hidden="true">*</span>`}</label>
      <${Input} field=${field} value=${value} about=${about} set=${set} />
      <${FieldError} notice=${notice} id=${`${id}-error`} />
    </div>`;
}

function Input({ field, value, about, set }) {
  const { t } = useText();
  const typed = (event) => set(field.path, event.target.value);
  if (field.kind === "choice" || field.kind === "flag") {
    const choices = field.kind === "flag" ? ["true", "false"] : field.choices;
    const word = (choice) => (field.kind === "flag" ? (choice === "true" ? t("yes") : t("catalogue.no")) : choice);
    const usual = field.default === null ? "-" : t("catalogue.usual", { value: word(String(field.default)) });
    return html`
      <select ...${about} value=${value} onChange=${typed}>
        <option value="">${usual}</option>
        ${choices.map((choice) => html`<option key=${choice} value=${choice} selected=${choice === value}>${word(choice)}</option>`)}
      </select>`;
  }
  if (field.path === "notes") return html`<textarea ...${about} rows="3" value=${value} onInput=${typed}></textarea>`;
  const number = field.kind === "number" || field.kind === "count";
  const usual = field.default === null || field.default === "" || Array.isArray(field.default) ? null : String(field.default);
  return html`
    <input ...${about} value=${value} required=${field.required} inputmode=${number ? "decimal" : null} placeholder=${usual}
      autocomplete="off" spellcheck=${!number && field.kind === "text"} onInput=${typed} />`;
}

/** What is wrong with a field, and what to do about it. @param {{notice: any, id?: string}} given */
export function FieldError({ notice, id }) {
  const { t } = useText();
  if (!notice) return null;
  return html`<p class="field-error" id=${id} role="alert">${notice.code === "missing_key" ? t("catalogue.required") : `${notice.message} ${notice.hint}`}</p>`;
}
