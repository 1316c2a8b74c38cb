// Numbers with their unit, as explanations show them.
import { useText } from "../lib/text.js";

/** Prefixes of large numbers, the largest first. @type {[number, string][]} */
const PREFIXES = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
/** Units that take them. */
const PREFIXED = { bytes: "B", "bytes/s": "B/s", FLOP: "FLOP", "FLOP/s": "FLOP/s" };

/** @returns {(value: number | null, unit: string) => string} a number and its unit in words of the language */
export function useQuantity() {
  const { t, amount, percent } = useText();
  return (value, unit) => {
    if (value === null) return "-";
    if (unit === "share") return percent(value);
    const [scale, prefix] = (unit in PREFIXED && PREFIXES.find(([from]) => Math.abs(value) >= from)) || [1, ""];
    if (prefix) return `${amount(Number((value / scale).toPrecision(4)))} ${prefix}${PREFIXED[unit]}`;
    return unit ? `${amount(value)} ${t(`explain.unit.${unit}`)}` : amount(value);
  };
}
