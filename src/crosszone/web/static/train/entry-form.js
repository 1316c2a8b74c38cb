import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Refusals } from "../compare/refusals.js";
import { Field, noticeOf } from "./field.js";
import { inputsOf, valueOf } from "./forms.js";

/**
 * Asks for an environment or a model; the server says what is wrong, beside the field.
 * @param {{groups: [string, import("./forms.js").Asked[]][], entry: import("./entries.js").Entry | null, start?: any, save: (id: string | null, body: any) => Promise<any>, done: (made: any) => void}} given
 *   entry: the one to change; null: a new one
 */
export function EntryForm({ groups, entry, start = {}, save, done }) {
  const { t } = useText();
  const [inputs, setInputs] = useState(() => inputsOf(groups, entry ? entry.value : start));
  const { notices, failed, busy, submit, form } = useSaving();
  const shown = groups.map(([group, fields]) => /** @type {[string, import("./forms.js").Asked[]]} */ ([group, fields.filter((field) => !(entry && field.once))]));
  const names = shown.flatMap(([, fields]) => fields.map(({ name }) => name));
  const apart = notices.filter((notice) => !names.some((name) => noticeOf([notice], name)));
  return html`
    <form ref=${form} class="train-form" noValidate onSubmit=${submit(() => save(entry?.id ?? null, valueOf(shown, inputs, entry?.value)), done)}>
      <${Refusals} notices=${apart} failed=${failed} />
      ${shown.map(([group, fields]) => html`
        <fieldset key=${group}>
          <legend>${t(`train.group.${group}`)}</legend>
          <div class="train-fields">
            ${fields.map((field) => html`
              <${Field} key=${field.name} id=${`entry-${field.name}`} name=${field.name} label=${t(`train.field.${field.name}`)} required=${field.required}
                note=${field.help && t(`train.help.${field.name}`)} wide=${field.kind === "long"} notice=${noticeOf(notices, field.name)}
                input=${(common) => html`<${Input} field=${field} common=${common} value=${inputs[field.name]} set=${(text) => setInputs((old) => ({ ...old, [field.name]: text }))} />`} />`)}
          </div>
        </fieldset>`)}
      <div class="train-form-foot"><button type="submit" class="primary" disabled=${busy}>${t("train.save")}</button></div>
    </form>`;
}

function Input({ field, common, value, set }) {
  const { t } = useText();
  const typed = (event) => set(event.target.value);
  if (field.kind === "one") {
    return html`
      <select ...${common} value=${value || field.of[0]} onChange=${typed}>
        ${field.of.map((one) => html`<option key=${one} value=${one} selected=${one === (value || field.of[0])}>${t(`train.${field.name}.${one}`)}</option>`)}
      </select>`;
  }
  if (field.kind === "long") return html`<textarea ...${common} rows="3" spellcheck=${false} maxlength="100000" value=${value} onInput=${typed}></textarea>`;
  return html`
    <input ...${common} type="text" inputmode=${field.kind === "number" ? "decimal" : null} list=${field.list ?? null} maxlength="1000" autocomplete="off" spellcheck=${false}
      value=${value} onInput=${typed} />`;
}

/** Saving of a form: `submit(work, done)` is its handler; the focus goes to the first field that is wrong. */
export function useSaving() {
  const [state, setState] = useState({ notices: [], failed: false, busy: false });
  const form = useRef(null);
  useEffect(() => {
    if (state.notices.length) form.current?.querySelector("[aria-invalid=true]")?.focus();
  }, [state.notices]);
  const submit = (work, done) => (event) => {
    event.preventDefault();
    setState({ notices: [], failed: false, busy: true });
    work().then(done, (error) => setState({ notices: error.notices ?? [], failed: !error.notices?.length, busy: false }));
  };
  return { ...state, form, submit };
}
