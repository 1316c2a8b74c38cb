import { html } from "../lib/dom.js";
import { pathText } from "../lib/fields.js";
import { useText } from "../lib/text.js";
import { Control } from "./control.js";
import { useForm } from "./form.js";
import { shapeOf } from "./shape.js";

/**
 * One field of the form: label, control, and a line for what to know about it. The line is always there, so that nothing moves
 * when an error comes; an error too long for it opens over what follows while the field has the cursor.
 * @param {{
 *   owner: string, path: import("../lib/fields.js").Path, hint?: any, placeholder?: string, wide?: boolean, children?: any, before?: any, after?: any, list?: string,
 *   disabled?: boolean, onSet?: (value: unknown) => void, names?: string[], label?: string,
 * }} given `children`: a slider or so beneath the control; `before`, `after`: buttons beside the label; `list`: id of a datalist
 */
export function Field({ owner, path, hint, placeholder, wide, children, before, after, list, disabled, onSet, names, label }) {
  const { t } = useText();
  const { schema, at, set, noticeAt } = useForm();
  const key = String(path.at(-1));
  const shape = shapeOf(schema, owner, key);
  const name = pathText(path);
  const id = `field-${name.replace(/[^\w]+/g, "-")}`;
  const notice = noticeAt(path);
  const help = t(`field_help.${owner}.${key}`);
  const described = `${id}-note`;
  return html`
    <div class=${`field ${wide ? "wide" : ""} ${notice ? notice.level : ""}`} title=${notice ? null : help}>
      <div class="field-head">${before}<label for=${id}>${label ?? t(`field.${owner}.${key}`)}</label>${after}</div>
      <${Control} id=${id} name=${name} shape=${shape} value=${at(path)} placeholder=${placeholder} list=${list} names=${names} disabled=${disabled}
        set=${onSet ?? ((value) => set(path, value))} invalid=${notice?.level === "error"} described=${described} />
      ${children}
      <${Note} id=${described} notice=${notice} hint=${hint} help=${help} />
    </div>`;
}

/** The line beneath a field. @param {{id: string, notice: {message: string, hint: string} | null, hint?: any, help?: string}} given help: for those who hear it */
export function Note({ id, notice, hint, help }) {
  return html`
    <p class="field-note" id=${id}>
      ${notice ? html`<span class="said">${notice.message} <span class="hint">${notice.hint}</span></span>` : (hint ?? "\u00a0")}
      ${help && html`<span class="visually-hidden">${help}</span>`}
    </p>`;
}
