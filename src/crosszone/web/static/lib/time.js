// Lengths of time with the unit that fits them.
import { useMemo } from "./dom.js";
import { useText } from "./text.js";

/** @type {[string, number][]} */
const UNITS = [["s", 1], ["ms", 1e3], ["µs", 1e6], ["ns", 1e9]];

/** `{time, range}`: `time(0.0421)` is "42.1 ms"; `range(1, 2)` is "1 - 2 s", both in the unit of the later one. */
export function useTime() {
  const { language } = useText();
  return useMemo(() => {
    const digits = new Intl.NumberFormat(language, { maximumSignificantDigits: 4 });
    const exact = new Intl.NumberFormat(language, { maximumSignificantDigits: 5 });
    const unit = (seconds) => UNITS.find(([, times]) => Math.abs(seconds) * times >= 0.9999) ?? (seconds === 0 ? UNITS[0] : UNITS.at(-1));
    const time = (seconds) => {
      if (seconds === null || seconds === undefined) return "-";
      const [name, times] = unit(seconds);
      return `${digits.format(seconds * times)} ${name}`;
    };
    const range = (start, end) => {
      const [name, times] = unit(end);
      return `${exact.format(start * times)} – ${exact.format(end * times)} ${name}`;
    };
    return { time, range };
  }, [language]);
}
