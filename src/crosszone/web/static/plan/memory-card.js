import { html, useMemo } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { Figure } from "../components/figure.js";
import { memoryOption } from "../charts/memory.js";
import { Value } from "./value.js";

/** What fills the memory of each stage's GPUs, against what they have. */
export function MemoryCard() {
  const { t, label, amount } = useText();
  const { prediction } = useAnswers();
  const tokens = useTokens();
  const memory = prediction?.memory_gib;
  const key = JSON.stringify(memory?.stages);
  const drawn = useMemo(() => {
    if (!memory) return null;
    const parts = Object.keys(memory.stages[0].parts).filter((part) => memory.stages.some(({ parts: held }) => held[part] > 0));
    const words = {
      part: (name) => label(`mem_${name}`), limit: label("mem_limit"), gib: (value) => amount(value),
      stage: ({ stage, gpu, layers }) => t("plan.memory.stage", { stage, gpu, layers }),
    };
    return {
      option: memoryOption({ stages: memory.stages, parts, tokens, words }),
      table: {
        columns: [label("stage"), label("gpu"), label("layers"), ...parts.map(words.part), label("total"), words.limit, label("peak_at")],
        rows: memory.stages.map(({ stage, gpu, layers, parts: held, total, limit, peak_at: when }) => [String(stage), gpu, layers, ...parts.map((part) => held[part]), total, limit, label(`peak_${when}`)]),
      },
    };
  }, [key, tokens, label, amount]);
  if (!memory) return null;
  const over = memory.stages.filter(({ total, limit }) => total > limit);
  const worst = memory.stages[memory.worst_stage];
  return html`
    <${Card} id="memory" title=${t("plan.memory.heading")} aside=${t("plan.memory.about")}>
      <p class=${`card-line ${over.length ? "wrong" : ""}`}>
        ${t(over.length ? "plan.memory.over" : "plan.memory.fits", { count: over.length })}${" "}
        ${worst && html`${t("plan.memory.worst", { stage: worst.stage })} <${Figure} path=${`memory_gib.stages[${memory.worst_stage}].total`}><${Value} of=${worst.total} /><//> / ${amount(worst.limit)} GiB`}
      </p>
      <${Chart} option=${drawn.option} table=${drawn.table} name="memory" height=${260} label=${t("plan.memory.label", { stages: memory.stages.length, peak: amount(memory.peak.expected), limit: amount(memory.limit) })} />
    <//>`;
}
