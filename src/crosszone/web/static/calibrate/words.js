// Numbers of calibration as they are shown.
import { useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/** `{pct, signed}`: errors in percent, three digits; what is not known is a dash. */
export function usePercent() {
  const { language } = useText();
  return useMemo(() => {
    const plain = new Intl.NumberFormat(language, { maximumSignificantDigits: 3 });
    const sign = new Intl.NumberFormat(language, { maximumSignificantDigits: 3, signDisplay: "exceptZero" });
    const written = (format) => (value) => (value === null || value === undefined ? "-" : `${format.format(value)} %`);
    return { pct: written(plain), signed: written(sign) };
  }, [language]);
}
