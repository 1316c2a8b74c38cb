// Words and figures of communication, as the command line says them.
import { useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";

const TIERS = ["fast link", "PCIe", "network", "between zones", "storage"];
/** Share below which one digit is told, however small it is. */
const SMALL = 1e-3;
const TOKENS = { "local update": "kind-local", checkpoint: "work-other" };

/** The token of a kind's colour. @param {string} kind */
export const kindToken = (kind) => TOKENS[kind] ?? `kind-${kind}`;

/** `{said, kind, link, share, chance, gain, change, gb, large, value}`: words with parameters, and figures short enough for a table. */
export function useWords() {
  const texts = useText();
  return useMemo(() => {
    const { label, amount, compact, language } = texts;
    const percent = new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 1 });
    const tiny = new Intl.NumberFormat(language, { style: "percent", maximumSignificantDigits: 1 });
    const whole = new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 0 });
    const gained = new Intl.NumberFormat(language, { style: "percent", maximumSignificantDigits: 3, signDisplay: "exceptZero" });
    const signed = new Intl.NumberFormat(language, { maximumSignificantDigits: 3, signDisplay: "exceptZero" });
    return {
      /** A word of the command line with {parameters} put in. @param {string} key @param {Record<string, any>} [parameters] */
      said: (key, parameters = {}) => label(key).replace(/\{(\w+)\}/g, (_, name) => parameters[name]),
      /** @param {string} name */
      kind: (name) => label(`kind_${name}`),
      /** A tier, or a direction between zones. @param {string} name */
      link: (name) => (TIERS.includes(name) ? label(`link_${name}`) : name),
      /** What crosses zones, of a sweep. @param {string} kind */
      crossing: (kind) => label(`crosses_${kind.replaceAll(" ", "_")}`),
      /** @param {number | null} ratio */
      share: (ratio) => (ratio === null ? "-" : (Math.abs(ratio) < SMALL ? tiny : percent).format(ratio)),
      /** A chance, in whole percent. @param {number | null} ratio */
      chance: (ratio) => (ratio === null ? "-" : whole.format(ratio)),
      /** @param {number} ratio */
      gain: (ratio) => gained.format(ratio),
      /** @param {number | null} value */
      change: (value) => (value === null ? "-" : signed.format(value)),
      /** @param {number} bytes */
      gb: (bytes) => amount(bytes / 1e9),
      /** Millions and more in a word. @param {number | null | undefined} value */
      large: (value) => (Math.abs(value ?? 0) >= 1e6 ? compact(value) : amount(value)),
      /** The value of a switch as one types it. @param {any} value */
      value: (value) => (value === true ? "on" : value === false ? "off" : typeof value === "number" ? amount(value) : String(value ?? "-")),
    };
  }, [texts]);
}
