import { html, useState } from "../lib/dom.js";
import { pathText } from "../lib/fields.js";
import { useText } from "../lib/text.js";
import { Note } from "./field.js";
import { useForm } from "./form.js";
import { useLists } from "./lists.js";

/** A model of the catalogue, by name. @param {{path: import("../lib/fields.js").Path}} given */
export function ModelName({ path }) {
  const { t, amount } = useText();
  const { at, set, noticeAt } = useForm();
  const { models } = useLists();
  const [typed, setTyped] = useState(null);
  const notice = noticeAt(path);
  const value = at(path);
  const found = models.find((model) => model.name === value);
  const take = (name) => {
    setTyped(null);
    if (name.trim() && name !== value) set(path, name.trim());
  };
  return html`
    <div class=${`field wide ${notice?.level ?? ""}`}>
      <div class="field-head"><label for="field-model-name">${t("form.model_name")}</label></div>
      <input id="field-model-name" data-field=${pathText(path)} type="text" list="known-models" maxlength="200" autocomplete="off" spellcheck=${false}
        value=${typed ?? String(value ?? "")} aria-invalid=${notice?.level === "error" ? "true" : null} aria-describedby="field-model-name-note"
        onInput=${(event) => (models.some((model) => model.name === event.target.value) ? take(event.target.value) : setTyped(event.target.value))}
        onChange=${(event) => typed !== null && take(event.target.value)} />
      <${Note} id="field-model-name-note" notice=${notice}
        hint=${found ? [found.publisher, found.model.max_seq_len && t("form.context", { count: amount(found.model.max_seq_len) })].filter(Boolean).join(" · ") : t("form.models_known", { count: models.length })} />
    </div>`;
}
