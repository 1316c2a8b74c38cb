// Figures of results as they are shown: shares in percent, large numbers in words of the language, signs on differences.
import { useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";

const SHARES = ["mfu"];
/** Money is shown to the dollar, unless it is little. */
const MONEY = ["usd", "usd_egress"];
/** A larger share of the first's says only that the first's is next to nothing. */
const MOST_PERCENT = 999;

/** `{figure, range, difference, percent}` by the name of the figure; what is not known is a dash. */
export function useFigures() {
  const { language } = useText();
  return useMemo(() => {
    const written = (options) => {
      const plain = new Intl.NumberFormat(language, { maximumSignificantDigits: 4, ...options });
      const large = new Intl.NumberFormat(language, { notation: "compact", maximumSignificantDigits: 4, ...options });
      const small = new Intl.NumberFormat(language, { maximumFractionDigits: 4, ...options });
      const whole = new Intl.NumberFormat(language, { maximumFractionDigits: 0, ...options });
      const share = new Intl.NumberFormat(language, { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1, ...options });
      return (name, value) => {
        if (value === null || value === undefined) return "-";
        if (SHARES.includes(name)) return share.format(value);
        if (Math.abs(value) >= 1e6) return large.format(value);
        if (Math.abs(value) < 0.1) return small.format(value);
        return (MONEY.includes(name) && Math.abs(value) >= 100) || Number.isInteger(value) ? whole.format(value) : plain.format(value);
      };
    };
    const figure = written({});
    const difference = written({ signDisplay: "exceptZero" });
    const part = new Intl.NumberFormat(language, { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1, signDisplay: "exceptZero" });
    const most = new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 0, signDisplay: "exceptZero" });
    const chance = new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 0 });
    return {
      figure,
      difference,
      chance: (share) => (share === null ? "-" : share > 0.99 ? `>${chance.format(0.99)}` : share < 0.01 ? `<${chance.format(0.01)}` : chance.format(share)),
      range: (name, found) => (found?.low ?? null) === null ? "" : `${figure(name, found.low)} – ${figure(name, found.high)}`,
      percent: (hundredths) => (hundredths > MOST_PERCENT ? `>${most.format(MOST_PERCENT / 100)}` : part.format(hundredths / 100)),
    };
  }, [language]);
}
