import { html, useState } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { Figure } from "../components/figure.js";
import { TableFrame } from "../components/table-frame.js";
import { Value } from "./value.js";
import { usePlanWords } from "./words.js";

/** Colours of the parts, as classes of plan.css. */
const COLOURS = {
  matmul: "work-forward", attention: "work-backward", elementwise: "work-weight", routing: "kind-expert", embedding: "work-weight",
  head: "work-weight", recompute: "work-recompute", host: "work-other", tensor: "kind-tensor", context: "kind-context", expert: "kind-expert",
  sharding: "kind-sharding", pipeline: "kind-pipeline", bubble: "work-idle", gradients: "kind-gradients", weights: "kind-weights",
  optimizer: "work-optimizer", local_update: "kind-local", fixed: "work-other", jitter: "work-other",
};
/** Share of the step below which parts stand apart, and below which they are only what rounding leaves. */
const SMALL = 0.001;
const NOTHING = 1e-9;

/** Where the step goes: a bar of its parts, and each with its seconds and share. */
export function StepCard() {
  const { t, label, percent } = useText();
  const { prediction } = useAnswers();
  const { said, percent1 } = usePlanWords();
  const [all, setAll] = useState(false);
  if (!prediction) return null;
  const total = prediction.step_time_s.expected;
  const parts = Object.entries(prediction.breakdown_s).filter(([, seconds]) => seconds > NOTHING * total).sort(([, a], [, b]) => b - a);
  const large = parts.filter(([, seconds]) => seconds >= SMALL * total);
  const small = parts.filter(([, seconds]) => seconds < SMALL * total);
  const bottleneck = prediction.bottleneck;
  const row = ([name, seconds]) => html`
    <tr key=${name} data-part=${name}>
      <th scope="row"><span class=${`swatch ${COLOURS[name]}`}></span>${label(`step_${name}`)}</th>
      <td class="number"><${Figure} path=${`breakdown_s.${name}`}><${Value} of=${seconds} /><//></td>
      <td class="number">${percent(seconds / total)}</td>
    </tr>`;
  return html`
    <${Card} id="step" title=${t("plan.step.heading")}
      aside=${said("bottleneck_line", { name: label(`class_${bottleneck}`), share: percent1(prediction.shares[bottleneck]).replace(/\s*%$/, "") })}>
      <div class="step-bar" aria-hidden="true">
        ${large.map(([name, seconds]) => html`<span key=${name} class=${COLOURS[name]} style=${{ flexGrow: seconds / total }} title=${label(`step_${name}`)}></span>`)}
      </div>
      <${TableFrame} label=${t("plan.step.heading")}>
        <thead><tr><th scope="col">${t("plan.why.part")}</th><th scope="col" class="number">s</th><th scope="col" class="number">${t("parts.share")}</th></tr></thead>
        <tbody class="capital">${large.map(row)}</tbody>
        ${small.length > 0 && html`
          <tbody class="capital minor">
            <tr><td colspan="3"><button type="button" class="link" aria-expanded=${String(all)} onClick=${() => setAll(!all)}>${said("small_parts", { count: small.length })}</button></td></tr>
            ${all && small.map(row)}
          </tbody>`}
        <tfoot><tr><th scope="row">${label("total")}</th><td class="number"><${Figure} path="step_time_s"><${Value} of=${total} /><//></td><td class="number">${percent(1)}</td></tr></tfoot>
      <//>
    <//>`;
}
