// What the schema of a scenario says of a field: what it holds, its choices and its default.

/**
 * @typedef {object} Shape
 * @property {string} owner class the field belongs to, e.g. Job: its label is field.Job.seq_len
 * @property {string} key
 * @property {"number" | "count" | "text" | "flag" | "choice" | "choices" | "counts" | "group"} kind
 * @property {(string | number)[]} choices
 * @property {boolean} required
 * @property {any} default what holds when it is left out; undefined: it follows from other fields
 * @property {boolean} nullable it may be left open
 */

const KINDS = /** @type {const} */ ({ number: "number", integer: "count", boolean: "flag", string: "text", object: "group" });

/** @param {any} schema of a scenario @param {string} owner name of a class @param {string} key @returns {Shape} */
export function shapeOf(schema, owner, key) {
  const known = schema.$defs[owner];
  const said = known.properties[key];
  const ways = said.anyOf ?? [said];
  const given = ways.filter((way) => way.type !== "null");
  const held = given[0].$ref ? schema.$defs[given[0].$ref.split("/").at(-1)] : given[0];
  return {
    owner,
    key,
    kind: held.type === "object" && given.some((way) => way.type === "string") ? "text" : kindOf(held), // a name in place of the whole
    choices: held.enum ?? held.items?.enum ?? [],
    required: (known.required ?? []).includes(key),
    default: said.default,
    nullable: given.length < ways.length,
  };
}

/** The keys of a class, in order. @param {any} schema @param {string} owner */
export const keysOf = (schema, owner) => Object.keys(schema.$defs[owner].properties);

function kindOf(held) {
  if (held.type === "array") return held.items?.enum ? "choices" : "counts";
  return held.enum ? "choice" : KINDS[held.type];
}
