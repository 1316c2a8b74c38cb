// What plans and their figures are called, in the words the command line uses too.
import { useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { GIVEN, OWN } from "../lib/answers.js";

const LARGE = 1e6;
const fill = (text, parameters) => text.replace(/\{(\w+)\}/g, (_, name) => parameters[name]);

/** `{said, framework, degrees, crossing, short, nameOf, listed, large, percent1}` */
export function usePlanWords() {
  const texts = useText();
  return useMemo(() => {
    const { t, label, framework, amount, compact, language } = texts;
    const one = new Intl.NumberFormat(language, { style: "percent", maximumFractionDigits: 1 });
    const listed = (names) => names.join(label("comma"));
    /** A word of the command line with {parameters} put in. */
    const said = (key, parameters = {}) => fill(label(key), parameters);
    const degrees = ({ tp, pp, dp, cp, ep }) =>
      Object.entries({ tp, pp, dp, cp, ep })
        .filter(([name, degree]) => degree > 1 || ["tp", "pp", "dp"].includes(name))
        .map(([name, degree]) => `${name} ${degree ?? "-"}`)
        .join(" ");
    const crossing = ({ kind, crossing: what, zones, strategy }) =>
      kind === "local update"
        ? said("crossing_local", { zones: listed(zones) }) + label("semicolon") + said("crosses_local", { steps: amount(strategy.local_update.steps) })
        : said(`crossing_${what}`, { zones: listed(zones) });
    const short = (plan) => `${framework(plan.framework)} ${degrees(plan.strategy)}`;
    /** What a way is called: its id, and the plan where it is one. */
    const nameOf = (id) =>
      id === GIVEN ? t("plan.as_written") : id === OWN ? t("plan.own") : id.startsWith("L") ? t("plan.local_rank", { rank: id.slice(1) }) : t("plan.rank", { rank: id });
    /** Large amounts with a word for millions, others in full. */
    const large = (value) => (value !== null && value !== undefined && Math.abs(value) >= LARGE ? compact(value) : amount(value));
    return { said, framework, degrees, crossing, short, nameOf, listed, large, percent1: (ratio) => one.format(ratio) };
  }, [texts]);
}
