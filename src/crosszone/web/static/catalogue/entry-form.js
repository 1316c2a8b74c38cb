import { html, useEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { fetchJson, postJson, putJson, segment } from "../lib/api.js";
import { useText } from "../lib/text.js";
import { FieldGroup } from "./field-group.js";
import { FieldError } from "./form-field.js";
import { fieldsOf, groupsOf, inputsOf } from "./form-values.js";
import { HfConfig } from "./hf-config.js";

/**
 * A new entry of the user's, a copy of another, or changes to one; the server says what is wrong, beside the field.
 * @param {{kind: string, draft: import("./place.js").Draft, saved: (name: string) => void, close: () => void}} given
 */
export function EntryForm({ kind, draft, saved, close }) {
  const { t, language } = useText();
  const [form, setForm] = useState(null);
  const [base, setBase] = useState({});
  const [name, setName] = useState("");
  const [inputs, setInputs] = useState({});
  const [notices, setNotices] = useState([]);
  const [busy, setBusy] = useState(false);
  const [touched, setTouched] = useState(false);
  const place = useRef(null);
  const edits = draft.mode === "edit";

  useEffect(() => {
    const start = draft.name ? fetchJson(`catalogue/${kind}/${segment(draft.name)}/fields`, language) : { name: "", fields: {} };
    Promise.all([fetchJson(`catalogue/forms/${kind}`, language), start]).then(([asked, from]) => {
      setForm(asked);
      setBase(from.fields);
      setName(draft.mode === "copy" ? `my-${from.name}` : from.name);
      setInputs(inputsOf(asked, from.fields));
    }, fail);
  }, []);
  useEffect(() => {
    if (form) place.current?.querySelector("input:not([readonly])")?.focus();
  }, [form]);
  useEffect(() => {
    if (notices.length) place.current?.querySelector("[aria-invalid=true]")?.focus();
  }, [notices]);

  function fail(error) {
    setBusy(false);
    setNotices(error.notices?.length ? error.notices : [{ field: "", message: t("failed"), hint: "" }]);
  }
  const groups = useMemo(() => (form ? groupsOf(form) : []), [form]);
  const errorOf = (path) => notices.find((notice) => notice.field === path);
  const beside = new Set(["name", ...(form ?? []).map((field) => field.path)]);
  const apart = notices.filter((notice) => !beside.has(notice.field));

  const submit = (event) => {
    event.preventDefault();
    setBusy(true);
    const fields = fieldsOf(form, inputs, base);
    const sent = edits
      ? putJson(`catalogue/${kind}/${segment(name)}`, { fields }, language)
      : postJson(`catalogue/${kind}`, { name: name.trim(), fields }, language);
    sent.then((made) => saved(made.name), fail);
  };
  const read = (imported) => {
    if (!name) setName(imported.name);
    setBase((old) => ({ ...old, ...imported.fields }));
    setInputs((old) => ({ ...old, ...inputsOf(form.filter(({ path }) => path.startsWith("architecture.")), imported.fields) }));
    setNotices([]);
  };

  return html`
    <aside class="pane entry" aria-labelledby="form-heading" onKeyDown=${(event) => event.key === "Escape" && !touched && close()}>
      <form class="entry-form" ref=${place} onInput=${() => setTouched(true)} onSubmit=${submit} noValidate>
        <div class="entry-head">
          <h2 id="form-heading">${edits ? t("catalogue.editing", { name: draft.name }) : t(`catalogue.add.${kind}`)}</h2>
          <button type="submit" class="primary" disabled=${!form || busy}>${t("catalogue.save")}</button>
          <button type="button" class="quiet" onClick=${close}>${t("catalogue.cancel")}</button>
        </div>
        ${apart.length > 0 && html`
          <ul class="form-errors" role="alert">${apart.map((notice) => html`<li class="text-error"><span>${notice.message} ${notice.hint}</span></li>`)}</ul>`}
        ${form && html`
          ${kind === "models" && !edits && html`<${HfConfig} read=${read} />`}
          <div class="form-field whole">
            <label for="entry-name">${t("column.name")}<span class="required" aria-hidden="true">*</span></label>
            <input id="entry-name" value=${name} readOnly=${edits} required maxLength="100" spellcheck=${false} autocomplete="off"
              aria-invalid=${String(Boolean(errorOf("name")))} aria-describedby="entry-name-about" onInput=${(event) => setName(event.target.value)} />
            <p id="entry-name-about" class="below">${t(edits ? "catalogue.name_stays" : "catalogue.name_about")}</p>
            <${FieldError} notice=${errorOf("name")} />
          </div>
          ${groups.map(
            (group) => html`
              <${FieldGroup} key=${group.name} group=${group} inputs=${inputs} errorOf=${errorOf}
                set=${(path, value) => setInputs((old) => ({ ...old, [path]: value }))} />`,
          )}`}
      </form>
    </aside>`;
}
