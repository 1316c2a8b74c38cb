import { html } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { More } from "../components/more.js";

/** Why there is no answer to the present scenario, and what to do about it. */
export function Refusal() {
  const { t } = useText();
  const { notices: unread, failed } = useScenario();
  const { planNotices, notices, chosen, prediction } = useAnswers();
  const [why, list] = unread.length
    ? ["unreadable", unread]
    : planNotices.length
      ? ["nothing", planNotices]
      : notices.length
        ? [chosen === "own" ? "own_refused" : "refused", notices]
        : [null, []];
  if (failed) return html`<div class="refusal" role="alert"><p>${t("failed")}</p></div>`;
  if (!why) return null;
  return html`
    <div class="refusal" role="alert" data-refusal=${why}>
      <h3>${t(`plan.refusal.${why}`)}</h3>
      <ul>
        <${More} most=${6} items=${list} row=${(notice) => html`
          <li>${notice.message} <span class="hint">${notice.hint}</span>${notice.line && html` <span class="hint">(${t("line", { line: notice.line })})</span>`}</li>`} />
      </ul>
      ${prediction && html`<p class="quiet-text">${t("plan.last_good")}</p>`}
    </div>`;
}
