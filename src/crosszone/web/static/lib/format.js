// Numbers as the command line writes them.

export function formatters(language) {
  const whole = new Intl.NumberFormat(language, { maximumFractionDigits: 0 });
  const short = new Intl.NumberFormat(language, { maximumSignificantDigits: 4 });
  const fixed = new Intl.NumberFormat(language, { minimumFractionDigits: 3, maximumFractionDigits: 3 });
  const compact = new Intl.NumberFormat(language, { notation: "compact", maximumSignificantDigits: 4 });
  const share = new Intl.NumberFormat(language, { style: "percent", minimumFractionDigits: 2, maximumFractionDigits: 2 });

  function amount(value) {
    if (value === null || value === undefined) return "-";
    if (Number.isInteger(value) && Math.abs(value) < 1e15) return whole.format(value);
    return Math.abs(value) < 1e6 ? short.format(value) : value.toExponential(3);
  }

  return {
    amount,
    /** Parameters in 1e9, small models in 1e6. */
    billions: (count) => (count >= 1e8 ? `${fixed.format(count / 1e9)} B` : `${fixed.format(count / 1e6)} M`),
    /** Large round counts in words of the language: 1T, 1万亿. */
    compact: (count) => compact.format(count),
    percent: (ratio) => share.format(ratio),
    /** A value of any kind for a cell. */
    shown: (value) => (Array.isArray(value) ? value.join(", ") : typeof value === "number" ? amount(value) : String(value)),
  };
}
