// Fields of a scenario by path, changed without touching the old ones. A path is keys and positions: ["cluster", "zones", 0, "name"].

/** @typedef {(string | number)[]} Path */

/** @param {any} value @param {Path} path */
export const fieldAt = (value, path) => path.reduce((inner, step) => inner?.[step], value);

/** The value with the field at a path set; `undefined` removes it. @param {any} value @param {Path} path @param {unknown} next */
export function withField(value, [step, ...rest], next) {
  const made = Array.isArray(value) ? [...value] : { ...(value ?? (typeof step === "number" ? [] : {})) };
  const inner = rest.length ? withField(value?.[step], rest, next) : next;
  if (inner !== undefined) made[step] = inner;
  else if (Array.isArray(made)) made.splice(Number(step), 1);
  else delete made[step];
  return made;
}

/** "cluster.zones[0].name" as the API writes it. @param {Path} path */
export const pathText = (path) => path.map((step, at) => (typeof step === "number" ? `[${step}]` : at ? `.${step}` : step)).join("");
