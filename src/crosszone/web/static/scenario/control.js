import { html, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { numberText, typedNumber } from "./number-text.js";

/**
 * The control that fits what a field holds. Emptied, the field is removed and its default holds again.
 * @param {{
 *   id: string, name: string, shape: import("./shape.js").Shape, value: any, set: (value: unknown) => void, placeholder?: string, list?: string,
 *   names?: string[], invalid: boolean, described: string, disabled?: boolean,
 * }} given `names`: known names; one that is typed in full is taken at once
 */
export function Control({ shape, value, set, placeholder, list, names, invalid, ...rest }) {
  const { t, shown } = useText();
  const common = {
    id: rest.id,
    "data-field": rest.name,
    disabled: rest.disabled,
    "aria-invalid": invalid ? "true" : null,
    "aria-describedby": rest.described,
  };
  const open = shape.default === undefined || shape.default === null ? "" : shown(shape.default);
  if (shape.kind === "choice" || shape.kind === "flag") {
    /** @type {any[]} */
    const choices = shape.kind === "flag" ? [true, false] : shape.choices;
    const words = (choice) => (choice === true ? t("yes") : choice === false ? t("form.no") : String(choice));
    const unset = value === undefined || value === null;
    const rare = !unset && !choices.includes(value) ? [value] : [];
    const given = shape.default === undefined || shape.default === null ? t("form.automatic") : t("form.default", { value: words(shape.default) });
    return html`
      <select ...${common} value=${unset ? "" : String(value)}
        onChange=${(event) => set([...choices, ...rare].find((choice) => String(choice) === event.target.value))}>
        ${!shape.required && html`<option value="" selected=${unset}>${placeholder ?? given}</option>`}
        ${[...choices, ...rare].map((choice) => html`<option value=${String(choice)} selected=${choice === value}>${typeof choice === "object" ? JSON.stringify(choice) : words(choice)}</option>`)}
      </select>`;
  }
  if (shape.kind === "text") {
    return html`<${Words} common=${common} value=${value} set=${set} placeholder=${placeholder ?? open} list=${list} names=${names} />`;
  }
  const several = shape.kind === "choices" || shape.kind === "counts";
  const write = several ? listText : numberText;
  const read = several ? typedList : typedNumber;
  return html`<${Typed} common=${common} value=${value} set=${set} write=${write} read=${read} placeholder=${placeholder ?? open} />`;
}

/**
 * Text that counts with every key: what was typed stays as it is while it means the value.
 * @param {{common: any, value: any, set: (value: unknown) => void, write?: (value: any) => string, read?: (text: string) => unknown, placeholder?: string}} given
 */
export function Typed({ common, value, set, write = numberText, read = typedNumber, placeholder }) {
  const [typed, setTyped] = useState(null);
  const same = typed !== null && JSON.stringify(read(typed)) === JSON.stringify(value ?? undefined);
  return html`
    <input ...${common} type="text" inputmode="decimal" autocomplete="off" spellcheck=${false} maxlength="2000" placeholder=${placeholder}
      value=${same ? typed : write(value)}
      onInput=${(event) => {
        setTyped(event.target.value);
        set(read(event.target.value));
      }} />`;
}

/** A name: taken when it is a known one or the field is left. */
function Words({ common, value, set, placeholder, list, names }) {
  const [typed, setTyped] = useState(null);
  const shown = typed ?? (typeof value === "string" ? value : value === undefined || value === null ? "" : JSON.stringify(value));
  const take = (text) => {
    setTyped(null);
    if (text !== (value ?? "")) set(text.trim() === "" ? undefined : text.trim());
  };
  return html`
    <input ...${common} type="text" autocomplete="off" spellcheck=${false} maxlength="200" placeholder=${placeholder} list=${list} value=${shown}
      onInput=${(event) => (names?.includes(event.target.value) ? take(event.target.value) : setTyped(event.target.value))}
      onChange=${(event) => typed !== null && take(event.target.value)} />`;
}

const listText = (value) => (Array.isArray(value) ? value.join(", ") : numberText(value));

function typedList(text) {
  const parts = text.split(/[,\s]+/).filter(Boolean);
  return parts.length ? parts.map((part) => typedNumber(part)) : undefined;
}
