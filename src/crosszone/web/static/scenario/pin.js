import { html } from "../lib/dom.js";
import { fieldAt } from "../lib/fields.js";
import { useText } from "../lib/text.js";
import { Field } from "./field.js";
import { useForm } from "./form.js";
import { shapeOf } from "./shape.js";

/**
 * A part of the strategy: free, so that the search decides, or pinned to a value.
 * @param {{owner: string, path: import("../lib/fields.js").Path, plan: any, fixed?: boolean}} given fixed: it has no pin of its own
 */
export function PinField({ owner, path, plan, fixed }) {
  const { t, shown } = useText();
  const { fields, schema, at, setAll } = useForm();
  const key = String(path.at(-1));
  const shape = shapeOf(schema, owner, key);
  const value = at(path);
  const pinned = value !== undefined && value !== null;
  const found = plan && fieldAt(plan, path);
  const word = (one) => (one === true ? t("yes") : one === false ? t("form.no") : shown(one));
  const inPlan = found === undefined || found === null ? null : t("form.in_plan", { value: word(found) });
  const name = t(`field.${owner}.${key}`);
  const pin = () => set(pinned ? undefined : (found ?? shape.default ?? shape.choices[0] ?? (shape.kind === "counts" ? [1] : 1)));
  const set = (next) => setAll(withPin(fields, path, next), path.join("."));
  const button = !fixed && html`
    <button type="button" class="pin" aria-pressed=${String(pinned)} onClick=${pin} aria-label=${t(pinned ? "form.unpin" : "form.pin", { name })} title=${t(pinned ? "form.unpin" : "form.pin", { name })}>
      <span aria-hidden="true"></span>
    </button>`;
  return html`<${Field} owner=${owner} path=${path} before=${button} onSet=${set} placeholder=${fixed ? undefined : t("form.free")} hint=${inPlan} />`;
}

/** The fields with one part of the strategy set; what is empty afterwards goes too. @param {any} fields @param {import("../lib/fields.js").Path} path @param {unknown} value */
export function withPin(fields, path, value) {
  const [step, ...rest] = path;
  const inner = rest.length ? withPin(fields?.[step] ?? {}, rest, value) : value;
  const next = { ...fields };
  const empty = inner === undefined || (rest.length > 0 && Object.keys(inner).length === 0);
  if (empty) delete next[step];
  else next[step] = inner;
  return next;
}
