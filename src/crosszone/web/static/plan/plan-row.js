import { html } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useText } from "../lib/text.js";
import { usePlanWords } from "./words.js";
import { Value } from "./value.js";

/** One way to train in the table of plans. @param {{id: string, plan: any, prediction: any, crossing: string | null, chance: number | null}} given */
export function PlanRow({ id, plan, prediction, crossing, chance }) {
  const { amount, t } = useText();
  const { chosen, choose, objective } = useAnswers();
  const words = usePlanWords();
  const shown = id === chosen;
  const strategy = plan?.strategy ?? prediction?.strategy;
  const framework = plan?.framework ?? prediction?.framework;
  const pick = () => choose(id);
  const memory = prediction?.memory_gib;
  return html`
    <tr class=${`plan-row ${shown ? "chosen" : ""}`} data-plan=${id} onClick=${pick}>
      <th scope="row"><button type="button" class="link" aria-pressed=${String(shown)} onClick=${(event) => { event.stopPropagation(); pick(); }}>${words.nameOf(id)}</button></th>
      <td class="crossing">${plan ? words.crossing(plan) : crossing}</td>
      <td>${framework ? words.framework(framework) : "-"}</td>
      <td>${strategy ? words.degrees(strategy) : "-"}</td>
      ${objective !== "time" && html`<td class="number" data-cell="value">${plan ? html`<${Value} of=${objective === "memory" ? -plan.value : plan.value} />` : "-"}</td>`}
      <td class="number" data-cell="step">${prediction ? html`<${Value} of=${prediction.step_time_s.expected} /><span class="below">${amount(prediction.step_time_s.low)} – ${amount(prediction.step_time_s.high)}</span>` : "-"}</td>
      <td class="number" data-cell="tokens">${prediction ? html`<${Value} of=${prediction.tokens_per_s.expected} shown=${words.large(prediction.tokens_per_s.expected)} />` : "-"}</td>
      <td class="number" data-cell="usd">${prediction?.run.usd ? html`<${Value} of=${prediction.run.usd.expected} shown=${words.large(prediction.run.usd.expected)} />` : "-"}</td>
      <td class=${`number ${memory && !memory.fits ? "wrong" : ""}`} data-cell="memory">${memory ? `${amount(memory.peak.expected)} / ${amount(memory.limit)}` : "-"}${memory?.verdict === "tight" && html`<span class="below">${t("plan.tight")}</span>`}</td>
      <td class="number" data-cell="chance">${chance === null || chance === undefined ? "-" : words.percent1(chance)}</td>
    </tr>`;
}
