// What the parts of the form share: the fields, how to change them, what the server says of each, and their shapes.
import { createContext, useContext, useMemo } from "../lib/dom.js";
import { fieldAt, pathText } from "../lib/fields.js";

/** @typedef {import("../lib/api.js").Notice} Notice */

export const STEPS = ["cluster", "model", "job", "options"];

/**
 * @typedef {object} Form
 * @property {any} fields
 * @property {any} schema
 * @property {any} description the last good one
 * @property {Notice[]} notices of the present scenario
 * @property {(path: import("../lib/fields.js").Path) => any} at value of a field
 * @property {(path: import("../lib/fields.js").Path, value: unknown) => void} set
 * @property {(fields: any, what?: string) => void} setAll changes with the same `what` that follow closely are undone as one
 * @property {(path: import("../lib/fields.js").Path) => Notice | null} noticeAt the worst one about a field or what is inside it
 */

export const FormContext = createContext(null);

/** @returns {Form} */
export const useForm = () => useContext(FormContext);

/** Step a notice belongs to; null: to the whole. @param {Notice} notice */
export function stepOf(notice) {
  const [start] = notice.field.split(/[.[]/);
  if (start === "strategy" || start === "placement") return "options";
  return STEPS.includes(start) ? start : null;
}

/** What the server says of the present scenario. @param {import("../lib/scenario.js").ScenarioState} scenario @returns {Notice[]} */
export const noticesOf = (scenario) => (scenario.notices.length ? scenario.notices : (scenario.description?.notices ?? []));

/** @param {import("../lib/scenario.js").ScenarioState} scenario @param {any} schema @returns {Form} */
export function useFormState(scenario, schema) {
  const notices = noticesOf(scenario);
  const { fields, description } = scenario;
  const noticeAt = useMemo(() => {
    const told = notices.filter((notice) => notice.level !== "note");
    return (path) => {
      const name = pathText(path);
      const about = told.filter(({ field }) => field === name || field.startsWith(`${name}.`) || field.startsWith(`${name}[`));
      return about.find((notice) => notice.level === "error") ?? about[0] ?? null;
    };
  }, [notices]);
  return {
    fields,
    schema,
    description,
    notices,
    noticeAt,
    at: (path) => fieldAt(fields, path),
    set: scenario.setField,
    setAll: scenario.setFields,
  };
}

/** Put the cursor where a notice points: its field, or the nearest one around it that the form shows. @param {string} field */
export function focusField(field) {
  for (let name = field; name; name = name.replace(/(\.[^.[]+|\[\d+\])$/, "")) {
    const found = /** @type {HTMLElement} */ (document.querySelector(`[data-field="${CSS.escape(name)}"]`));
    if (found) {
      found.closest("details")?.setAttribute("open", "");
      found.focus();
      return;
    }
    if (!/[.[]/.test(name)) return;
  }
}
