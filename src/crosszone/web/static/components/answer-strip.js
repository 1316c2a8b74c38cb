import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { usePlanWords } from "../plan/words.js";
import { Value } from "../plan/value.js";
import { Figure } from "./figure.js";

/** Class of the tile and word of each verdict on memory. */
const VERDICTS = { yes: ["good", "plan.fits"], tight: ["", "plan.tight"], no: ["bad", "plan.over"] };

/** The figures one looks at first: time, speed, length, money, energy, memory. @param {{prediction: any, stale: boolean}} given */
export function AnswerStrip({ prediction, stale }) {
  const { t, percent } = useText();
  const tiles = useTiles(prediction);
  const [tone, verdict] = VERDICTS[prediction.memory_gib.verdict];
  return html`
    <dl class="strip" data-strip>
      ${tiles.map(({ key, path, value, shown, unit, below }) => html`
        <div class=${`tile ${key === "memory" ? tone : ""}`} key=${key}>
          <dt>${t(`plan.tile.${key}`)}</dt>
          <dd data-figure=${key}>
            ${key === "memory" && html`<span class="verdict-word">${t(verdict)}</span> `}
            ${value === null ? "-" : html`<${Figure} path=${path}><${Value} of=${value} shown=${shown} /><//>`}${unit && html`<span class="unit"> ${unit}</span>`}
          </dd>
          ${below.map((line) => html`<dd class="below" title=${typeof line === "string" ? line : null}>${line}</dd>`)}
        </div>`)}
    </dl>
    <p class="visually-hidden" role="status">
      ${stale
        ? t("plan.working")
        : t("plan.status", {
            step: tiles[0].shown, tokens: tiles[1].shown, mfu: percent(prediction.mfu.expected),
            memory: t(verdict),
          })}
    </p>`;
}

/** What each tile says. */
function useTiles(prediction) {
  const { t, amount, percent } = useText();
  const { said, large } = usePlanWords();
  const { step_time_s: step, tokens_per_s: tokens, mfu, run, memory_gib: memory } = prediction;
  const range = (triple, write = large) => html`<span class="range">${write(triple.low)} – ${write(triple.high)}</span>`;
  return [
    { key: "step", path: "step_time_s", value: step.expected, shown: amount(step.expected), unit: "s", below: [range(step), t("plan.eight_of_ten")] },
    { key: "tokens", path: "tokens_per_s", value: tokens.expected, shown: large(tokens.expected), below: [range(tokens), t("plan.per_gpu", { tokens: amount(prediction.tokens_per_s_per_gpu.expected) })] },
    { key: "mfu", path: "mfu", value: mfu.expected, shown: percent(mfu.expected), below: [range(mfu, percent), t("plan.tflops", { tflops: amount(prediction.tflops_per_gpu.expected) })] },
    run.days
      ? { key: "days", path: "run.days", value: run.days.expected, shown: amount(run.days.expected), below: [range(run.days, amount), t("plan.steps", { steps: amount(run.steps) })] }
      : { key: "days", value: null, below: [said("run_unknown")] },
    run.usd
      ? { key: "usd", path: "run.usd", value: run.usd.expected, shown: large(run.usd.expected), unit: "$", below: [range(run.usd), ...egress(run, said, large)] }
      : { key: "usd", value: null, below: [run.usd_per_hour === null ? said("cost_unknown") : said("cost_hour", { usd: amount(run.usd_per_hour) })] },
    run.kwh
      ? { key: "energy", path: "run.kwh", value: run.kwh.expected, shown: large(run.kwh.expected), unit: "kWh", below: [run.co2_kg ? said("energy_co2", { co2: amount(run.co2_kg.expected / 1000) }) : t("plan.no_carbon"), said("energy_kw", { kw: amount(run.kw) })] }
      : { key: "energy", path: "run.kw", value: run.kw ?? null, shown: amount(run.kw), unit: run.kw === null ? "" : "kW", below: run.kw === null ? [said("energy_unknown")] : [] },
    { key: "memory", path: "memory_gib.peak", value: memory.peak.expected, shown: amount(memory.peak.expected), unit: t("plan.of_gib", { limit: amount(memory.limit) }), below: [range(memory.peak), t("plan.likely", { probability: `${Math.round(100 * memory.fits_probability)}%` }), t("plan.fullest", { stage: memory.worst_stage })] },
  ];
}

/** What sending between zones costs within the total, or that it is left out. */
function egress(run, said, large) {
  if (run.usd_egress === null) return [said("cost_egress_unknown")];
  return run.usd_egress ? [said("cost_egress", { usd: large(run.usd_egress) })] : [];
}
