// What a form holds, from the fields of an entry and back. Inputs are as typed; the server says whether they are right.
import { fieldAt, withField } from "../lib/fields.js";

/**
 * @typedef {{path: string, kind: "number" | "count" | "text" | "names" | "flag" | "choice" | "choices", required: boolean, group: string,
 *   optional_group: boolean, choices: string[], least: number | null, most: number | null, default: any}} FormField
 * @typedef {{name: string, optional: boolean, fields: FormField[], more: FormField[]}} Group
 */

/** Fields beside the main ones that a group may show without hiding them. */
const FEW = 8;
const steps = (path) => path.split(".");

/** What the inputs show of an entry's fields. @param {FormField[]} form @param {any} fields */
export const inputsOf = (form, fields) => Object.fromEntries(form.map((field) => [field.path, inputOf(field, fieldAt(fields, steps(field.path)))]));

function inputOf({ kind }, value) {
  if (kind === "choices") return value ?? [];
  if (kind === "names") return (value ?? []).join(", ");
  return value === undefined || value === null ? "" : String(value);
}

/**
 * The fields of an entry: what the form does not know stays as it was, what is empty is left out.
 * @param {FormField[]} form @param {Record<string, any>} inputs @param {any} base
 */
export function fieldsOf(form, inputs, base) {
  let made = base;
  for (const field of form) made = withField(made, steps(field.path), valueOf(field, inputs[field.path]));
  for (const { group, optional_group } of form) {
    const given = group && fieldAt(made, steps(group));
    if (group && given && !Object.keys(given).length) made = withField(made, steps(group), optional_group ? undefined : {});
  }
  return made;
}

function valueOf({ kind }, input) {
  if (kind === "choices") return input.length ? input : undefined;
  const typed = String(input ?? "").trim();
  if (typed === "") return undefined;
  if (kind === "names") return typed.split(",").map((name) => name.trim()).filter(Boolean);
  if (kind === "flag") return typed === "true";
  if (kind === "number" || kind === "count") return Number.isFinite(Number(typed)) ? Number(typed) : typed;
  return typed;
}

/** The fields by what they belong to; those that most entries leave alone stand apart. @param {FormField[]} form @returns {Group[]} */
export function groupsOf(form) {
  const names = [...new Set(form.map(({ group }) => group))].sort((a, b) => Number(b.startsWith("architecture")) - Number(a.startsWith("architecture")));
  return names.map((name) => {
    const all = form.filter((field) => field.group === name);
    const usual = all.filter((field) => field.required || field.default === null);
    const split = all.length - usual.length > FEW;
    return { name, optional: all[0].optional_group, fields: split ? usual : all, more: split ? all.filter((field) => !usual.includes(field)) : [] };
  });
}
