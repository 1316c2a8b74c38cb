import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Field } from "./field.js";
import { useForm } from "./form.js";
import { keysOf } from "./shape.js";

const FIRST = ["layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab", "head_dim", "max_seq_len"];
const GROUPS = [["moe", "Moe"], ["mla", "Mla"], ["window", "Window"], ["mamba", "Mamba"]];

/** The architecture, field by field. @param {{base?: any}} given base: the model it is like; what is left empty is as there */
export function ModelFields({ base }) {
  const { t, shown } = useText();
  const { schema, noticeAt } = useForm();
  const usual = (value) => (value === undefined || value === null ? {} : { placeholder: shown(value === true ? t("yes") : value === false ? t("form.no") : value) });
  const field = (key) => html`<${Field} key=${key} owner="Model" path=${["model", key]} ...${usual(base?.[key])} />`;
  const rest = keysOf(schema, "Model").filter((key) => ![...FIRST, "name", ...GROUPS.map(([group]) => group)].includes(key));
  const failing = rest.some((key) => noticeAt(["model", key])?.level === "error");
  return html`
    <div class="fields">${FIRST.map(field)}</div>
    ${GROUPS.map(([key, owner]) => html`<${Group} key=${key} group=${key} owner=${owner} base=${base?.[key]} usual=${usual} />`)}
    <details class="rest" open=${failing || null}>
      <summary>${t("form.more_fields")}</summary>
      <div class="fields">${rest.map(field)}</div>
    </details>`;
}

/** A part a model may have or not: experts, latent attention, a window, Mamba-2 layers. */
function Group({ group, owner, base, usual }) {
  const { t } = useText();
  const { schema, at, set, noticeAt } = useForm();
  const path = ["model", group];
  const value = at(path);
  const has = value !== undefined && value !== null;
  const notice = noticeAt(path);
  return html`
    <fieldset class="group">
      <legend>
        <label><input type="checkbox" data-field=${`model.${group}`} checked=${has} onChange=${(event) => set(path, event.target.checked ? { ...base } : undefined)} />
          ${" "}${t(`form.${group}`)}</label>
      </legend>
      ${has && html`
        <div class="fields">
          ${keysOf(schema, owner).map((key) => html`<${Field} key=${key} owner=${owner} path=${[...path, key]} ...${usual(base?.[key])} />`)}
        </div>`}
      ${has && notice && notice.field === `model.${group}` && html`<p class="said-block">${notice.message} <span class="hint">${notice.hint}</span></p>`}
    </fieldset>`;
}
