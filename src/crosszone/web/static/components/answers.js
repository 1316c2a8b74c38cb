import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { AnswerStrip } from "./answer-strip.js";
import { Links } from "./links.js";
import { ModelParameters } from "./model-parameters.js";
import { Notices } from "./notices.js";
import { StrategyAnswer } from "./strategy.js";
import { Zones } from "./zones.js";

/** What follows from the scenario: the answer first, then what to know, then the why. */
export function Answers({ answer, stale, busy, lineOf, jump }) {
  const { t } = useText();
  if (!answer) return html`<section class="pane answers" aria-busy="true" aria-label=${t("answers")}></section>`;
  return html`
    <section class=${`pane answers ${stale ? "stale" : ""}`} aria-label=${t("answers")} aria-busy=${String(busy)}>
      ${stale && html`<p class="stale-note">${t("stale")}</p>`}
      <div class="fades">
        <${AnswerStrip} answer=${answer} stale=${stale} />
        <${Notices} notices=${answer.notices} lineOf=${lineOf} jump=${jump} />
        <${StrategyAnswer} strategy=${answer.strategy} />
        <${Zones} cluster=${answer.cluster} />
        <${Links} links=${answer.cluster.links} />
        <${ModelParameters} model=${answer.model} job=${answer.job} />
      </div>
    </section>`;
}
