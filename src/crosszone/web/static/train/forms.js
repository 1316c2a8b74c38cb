// What the forms of environments and models ask for, in groups.

/** @typedef {{name: string, kind?: "text" | "number" | "one" | "long", of?: string[], list?: string, required?: boolean, help?: boolean, start?: string, once?: boolean}} Asked
 * once: only when it is added */

/** @type {[string, Asked[]][]} */
export const ENVIRONMENT = [
  ["what", [
    { name: "name", required: true },
    { name: "id", once: true, help: true },
    { name: "zone", required: true, list: "train-zones", help: true },
    { name: "region", list: "known-regions", help: true },
    { name: "type", list: "train-types" },
    { name: "status", kind: "one", of: ["unknown", "running", "stopped", "unreachable"] },
    { name: "image" },
  ]],
  ["has", [
    { name: "gpu", list: "known-gpus", help: true },
    { name: "gpus", kind: "number" },
    { name: "cpus", kind: "number" },
    { name: "memory_gb", kind: "number" },
    { name: "nic_gbps", kind: "number" },
  ]],
  ["reach", [
    { name: "runner", kind: "one", of: ["ssh", "local", "slurm", "kubernetes", "ray"] },
    { name: "address", help: true },
    { name: "interface" },
    { name: "ssh_user" },
    { name: "ssh_port", kind: "number" },
    { name: "ssh_key", help: true },
    { name: "known_hosts" },
    { name: "partition", help: true },
    { name: "python", help: true },
    { name: "workdir", help: true },
  ]],
];

/** @type {[string, Asked[]][]} */
export const MODEL = [
  ["model", [
    { name: "name", required: true },
    { name: "id", once: true, help: true },
    { name: "model", kind: "long", required: true, help: true },
    { name: "weights", help: true },
  ]],
];

/** What a form shows of a value. @param {[string, Asked[]][]} groups @param {any} value */
export const inputsOf = (groups, value) =>
  Object.fromEntries(groups.flatMap(([, fields]) => fields.map(({ name }) => [name, textOf(value?.[name])])));

const textOf = (value) => (value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value, null, 2) : String(value));

/** The value of what was typed: what the form does not ask for stays as it was. @param {[string, Asked[]][]} groups @param {Record<string, string>} inputs @param {any} base */
export function valueOf(groups, inputs, base) {
  const made = { ...base };
  for (const [, fields] of groups) {
    for (const { name, kind } of fields) {
      const text = inputs[name].trim();
      if (text === "") delete made[name];
      else made[name] = kind === "number" ? numberOf(text) : kind === "long" ? fieldsOf(text) : text;
    }
  }
  return made;
}

const numberOf = (text) => (Number.isFinite(Number(text)) ? Number(text) : text);

/** A name, or the fields that were pasted; what cannot be read goes as it is, and is refused there. */
function fieldsOf(text) {
  if (!text.startsWith("{")) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
