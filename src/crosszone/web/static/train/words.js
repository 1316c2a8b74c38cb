// How machines and moments are said.
import { useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/** Types of environments that have a word of their own. */
const TYPES = ["jupyter", "custom", "local", "ssh", "slurm", "kubernetes", "ray"];
/** @type {["day" | "hour" | "minute", number][]} */
const UNITS = [["day", 86400], ["hour", 3600], ["minute", 60]];

/** `{type, gpus, lasted, when, gigabytes}` in the language. */
export function useWords() {
  const { t, amount, language } = useText();
  return useMemo(() => {
    const moment = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" });
    const exact = new Intl.DateTimeFormat(language, { dateStyle: "short", timeStyle: "medium" });
    const hours = new Intl.DateTimeFormat(language, { timeStyle: "medium" });
    const unit = (name, count) => new Intl.NumberFormat(language, { style: "unit", unit: name, unitDisplay: "long" }).format(count);
    return {
      type: (name) => (TYPES.includes(name) ? t(`train.type.${name}`) : name),
      gpus: (value) => (value.gpus ? `${value.gpus} × ${value.gpu ?? t("train.gpu_unknown")}` : t("train.no_gpu")),
      /** "5 days 3 hours": the two largest units. @param {number} seconds */
      lasted: (seconds) => {
        const at = UNITS.findIndex(([, length]) => seconds >= length);
        if (at < 0) return unit("minute", 0);
        const parts = UNITS.slice(at, at + 2).map(([name, length], place, shown) => {
          const within = place ? seconds % shown[0][1] : seconds;
          return [name, Math.floor(within / length)];
        });
        return parts.filter(([, count]) => count).map(([name, count]) => unit(name, count)).join(language === "zh" ? "" : " ");
      },
      when: (text) => moment.format(new Date(text)),
      clock: (text) => hours.format(new Date(text)),
      exactly: (text) => exact.format(new Date(text)),
      gigabytes: (value) => (value === null || value === undefined ? "-" : `${amount(Math.round(value))} GB`),
    };
  }, [language]);
}
