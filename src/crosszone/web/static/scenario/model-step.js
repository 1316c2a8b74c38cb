import { html, useState } from "../lib/dom.js";
import { fetchJson, segment } from "../lib/api.js";
import { useText } from "../lib/text.js";
import { Facts } from "../components/facts.js";
import { Typed } from "./control.js";
import { Note } from "./field.js";
import { useForm } from "./form.js";
import { HfImport } from "./hf-import.js";
import { useLists } from "./lists.js";
import { ModelFields } from "./model-fields.js";
import { ModelName } from "./model-name.js";

const WAYS = ["catalogue", "size", "like", "own", "hf"];

/** What is trained: a name, a size, a known model changed, or an architecture of one's own. */
export function ModelStep() {
  const { t, billions, language } = useText();
  const { at, set, description, noticeAt } = useForm();
  const { models } = useLists();
  const [pasting, setPasting] = useState(false);
  const model = at(["model"]);
  const way = pasting ? "hf" : wayOf(model);
  const base = typeof model?.like === "string" ? model.like : typeof model === "string" ? model : (description?.model.name ?? "");
  const known = models.some((one) => one.name === base) ? base : models[0]?.name;
  const row = models.find((one) => one.name === base);
  const start = {
    catalogue: async () => known,
    size: async () => ({ size_b: Number((description.model.parameters.total / 1e9).toPrecision(3)) }),
    like: async () => ({ like: known }),
    own: async () => ({ name: "custom", ...(await fetchJson(`catalogue/models/${segment(known)}/fields`, language)).fields.architecture }),
  };
  const choose = async (next) => {
    setPasting(next === "hf");
    if (next !== "hf" && next !== wayOf(model)) set(["model"], await start[next]());
  };
  const counted = description?.model.parameters;
  const size = noticeAt(["model", "size_b"]);
  return html`
    <fieldset class="ways">
      <legend>${t("form.model_way")}</legend>
      ${WAYS.map((one) => html`
        <label><input type="radio" name="model-way" checked=${way === one} disabled=${!known} onChange=${() => choose(one)} /> ${t(`form.way_${one}`)}</label>`)}
      ${wayOf(model) === "file" && html`<label><input type="radio" name="model-way" checked=${way === "file"} onChange=${() => setPasting(false)} /> ${t("form.way_file", { file: model.hf_config })}</label>`}
    </fieldset>
    ${way === "catalogue" && html`<${ModelName} path=${["model"]} />`}
    ${way === "size" && html`
      <div class=${`field wide ${size?.level ?? ""}`}>
        <div class="field-head"><label for="field-model-size">${t("form.size_b")}</label></div>
        <${Typed} value=${model.size_b} set=${(value) => set(["model", "size_b"], value ?? null)} common=${{
          id: "field-model-size", "data-field": "model.size_b", "aria-invalid": size?.level === "error" ? "true" : null, "aria-describedby": "field-model-size-note",
        }} />
        <${Note} id="field-model-size-note" notice=${size} hint=${description && t("form.stands_for", { name: description.model.name })} />
      </div>`}
    ${way === "like" && html`<${ModelName} path=${["model", "like"]} /><p class="quiet-text">${t("form.like_about")}</p><${ModelFields} base=${row?.model} />`}
    ${way === "own" && html`<${ModelFields} />`}
    ${way === "hf" && html`<${HfImport} done=${(fields) => { set(["model"], fields); setPasting(false); }} />`}
    ${counted && html`
      <${Facts} facts=${[
        [t("form.parameters"), html`<span data-figure="form-parameters">${billions(counted.total)}</span>`],
        ...(counted.active === counted.total ? [] : [[t("form.active"), billions(counted.active)]]),
        [t("form.shape"), `${description.model.layers} × ${description.model.hidden}`],
        [t("form.attention"), description.model.attention],
      ]} />`}`;
}

function wayOf(model) {
  if (typeof model === "string") return "catalogue";
  if (typeof model?.hf_config === "string") return "file";
  return model && "like" in model ? "like" : model && "size_b" in model ? "size" : "own";
}
