import { html, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Field } from "./form-field.js";

/**
 * The fields of one part of an entry; a part that may be left out is folded away while it is empty.
 * @param {{group: import("./form-values.js").Group, inputs: Record<string, any>, errorOf: (path: string) => any, set: (path: string, value: any) => void}} given
 */
export function FieldGroup({ group, inputs, errorOf, set }) {
  const { t } = useText();
  const title = t(`catalogue.group.${group.name.split(".").at(-1) || "entry"}`);
  const given = { inputs, errorOf, set };
  if (group.optional) return html`<${Fold} class="form-group" title=${title} fields=${group.fields} ...${given} />`;
  return html`
    <fieldset class="form-group">
      <legend>${title}</legend>
      <${Fields} fields=${group.fields} ...${given} />
      ${group.more.length > 0 && html`<${Fold} title=${t("catalogue.more_fields")} fields=${group.more} ...${given} />`}
    </fieldset>`;
}

function Fields({ fields, inputs, errorOf, set }) {
  return html`
    <div class="form-grid">
      ${fields.map((field) => html`<${Field} key=${field.path} field=${field} value=${inputs[field.path]} notice=${errorOf(field.path)} set=${set} />`)}
    </div>`;
}

/** Opens by itself where something is given or wrong, and stays as the user leaves it. */
function Fold({ title, fields, inputs, errorOf, set, ...rest }) {
  const [open, setOpen] = useState(() => fields.some(({ path }) => (inputs[path] ?? "").length > 0));
  const wrong = fields.some(({ path }) => errorOf(path));
  return html`
    <details ...${rest} open=${open || wrong} onToggle=${(event) => setOpen(event.target.open)}>
      <summary>${title}</summary>
      <${Fields} fields=${fields} inputs=${inputs} errorOf=${errorOf} set=${set} />
    </details>`;
}
