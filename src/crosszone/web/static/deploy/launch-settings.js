// What the user adds beside the plan: kept as it was typed, sent as the server takes it.
import { useMemo, useState } from "../lib/dom.js";
import { keep, kept } from "../lib/address.js";
import { withField } from "../lib/fields.js";
import { typedNumber } from "../scenario/number-text.js";

const KEY = "deploy.settings";

/** @typedef {{name: string, title: string, meaning: string, kind: string, group: string, launchers: string[], default: any}} SettingChoice */

/**
 * `values`: what was typed by name (of `partitions` by `partitions.ZONE`); `sent`: what the server is told; `given`: the same as [name, text].
 * @typedef {{values: Record<string, string>, set: (name: string, text: string) => void, clear: () => void, sent: any, given: [string, string][]}} Settings
 */

/** @param {{settings: SettingChoice[]} | null} choices @param {string} launcher @returns {Settings} */
export function useSettings(choices, launcher) {
  const [values, setValues] = useState(remembered);
  const take = (next) => {
    keep(KEY, JSON.stringify(next));
    setValues(next);
  };
  const given = useMemo(() => givenOf(choices, launcher, values), [choices, launcher, values]);
  const text = JSON.stringify(given);
  const sent = useMemo(() => sentOf(choices, given), [Boolean(choices), text]);
  return {
    values,
    set: (name, typed) => take(typed.trim() ? { ...values, [name]: typed } : without(values, name)),
    clear: () => take({}),
    sent,
    given,
  };
}

/** Whether a launcher reads a setting. @param {SettingChoice} setting @param {string} launcher */
export const isRead = (setting, launcher) => !setting.launchers.length || setting.launchers.includes(launcher);

function remembered() {
  try {
    const values = JSON.parse(kept(KEY) ?? "{}");
    return Object.fromEntries(Object.entries(values).filter(([, text]) => typeof text === "string"));
  } catch {
    return {};
  }
}

const without = (values, name) => Object.fromEntries(Object.entries(values).filter(([key]) => key !== name));

/** @returns {[string, string][]} what counts for the launcher, in the order of the form */
function givenOf(choices, launcher, values) {
  const read = (choices?.settings ?? []).filter((setting) => isRead(setting, launcher));
  return read.flatMap((setting) =>
    Object.entries(values)
      .filter(([name]) => name === setting.name || (setting.kind === "zones" && name.startsWith(`${setting.name}.`)))
      .map(([name, text]) => /** @type {[string, string]} */ ([name, text.trim()])),
  );
}

function sentOf(choices, given) {
  let sent = {};
  for (const [name, text] of given) {
    const [first, ...rest] = name.split(".");
    const kind = choices.settings.find((one) => one.name === name)?.kind ?? "text";
    const value = kind === "flag" ? text === "true" : kind === "number" || kind === "count" ? typedNumber(text) : text;
    sent = withField(sent, rest.length ? [first, rest.join(".")] : [first], value);
  }
  return sent;
}
