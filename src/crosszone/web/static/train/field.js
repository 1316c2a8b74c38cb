import { html } from "../lib/dom.js";

/**
 * One field with its label, a note, and what is wrong with it.
 * @param {{id: string, name: string, label: string, note?: any, notice?: import("../lib/api.js").Notice, wide?: boolean, required?: boolean, input: (common: any) => any}} given
 *   name: of the field as the server calls it
 */
export function Field({ id, name, label, note = null, notice = undefined, wide = false, required = false, input }) {
  const common = { id, "data-field": name, "aria-invalid": notice ? "true" : null, "aria-describedby": note || notice ? `${id}-note` : null };
  return html`
    <div class=${`train-field ${wide ? "wide" : ""}`}>
      <label for=${id}>${label}${required && html`<span class="required" aria-hidden="true">*</span>`}</label>
      ${input(common)}
      ${(note || notice) && html`
        <p class="field-note" id=${`${id}-note`}>${notice ? html`<span class="wrong" role="alert">${notice.message} ${notice.hint}</span>` : note}</p>`}
    </div>`;
}

/** The notice about a field, or about a part of it. @param {import("../lib/api.js").Notice[]} notices @param {string} name */
export const noticeOf = (notices, name) => notices.find(({ field }) => field === name || field?.startsWith(`${name}.`) || field?.startsWith(`${name}[`));
