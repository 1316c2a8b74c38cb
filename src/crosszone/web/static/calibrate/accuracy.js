import { html, useMemo, useState } from "../lib/dom.js";
import { streamFetch } from "../lib/api.js";
import { useAsked } from "../lib/asked.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { Refusals } from "../compare/refusals.js";
import { ComponentsCard } from "./components-card.js";
import { RunsCard } from "./runs-card.js";
import { ScatterCard } from "./scatter-card.js";
import { SharesCard } from "./shares-card.js";
import { SourcesCard } from "./sources-card.js";
import { SteadinessCard } from "./steadiness-card.js";

/**
 * How far predictions are from what was measured: runs of this server, and measured data that lies on it.
 * Jobs that were timed part by part are there at once; whole runs take longer, and their progress is shown.
 * @param {{change: any, learn: () => void}} given
 */
export function Accuracy({ change, learn }) {
  const { t, language } = useText();
  const [again, setAgain] = useState(0);
  const question = useMemo(() => ({ again }), [again]);
  const parts = useAsked(question, (_, signal) => streamFetch("calibrate/accuracy/parts", language, { signal }), { also: [language] });
  const whole = useWhole(question);
  const answer = whole.answer;
  const report = answer?.report ?? null;
  const timed = report ?? parts.answer?.report ?? null;
  return html`
    <${RunsCard} change=${change} learn=${learn} />
    <div aria-busy=${whole.busy}>
      <${Refusals} notices=${whole.notices} failed=${whole.failed} />
      ${whole.busy && !report && html`<${Busy} progress=${whole.progress} stop=${whole.stop} />`}
      ${!whole.busy && answer?.stopped && html`<p class="calibrate-progress">${t("calibrate.stopped")} <button type="button" class="link" onClick=${() => setAgain(again + 1)}>${t("calibrate.again")}</button></p>`}
      ${answer?.present === false && html`<${NoData} answer=${answer} />`}
      ${report?.own && html`<p class="calibrate-note">${t("calibrate.accuracy.own", { name: report.own })}</p>`}
      ${report && html`<${SourcesCard} report=${report} />`}
      ${timed && html`
        <div class="calibrate-pair">
          ${report && html`<${ScatterCard} runs=${report.runs} />`}
          ${timed.components && html`<${ComponentsCard} table=${timed.components} />`}
        </div>
        <div class="calibrate-pair">
          ${timed.shares.length > 0 && html`<${SharesCard} shares=${timed.shares} />`}
          ${timed.stability.length > 0 && html`<${SteadinessCard} runs=${timed.stability} />`}
        </div>`}
      ${report?.missing.length > 0 && html`<p class="calibrate-note">${t("calibrate.accuracy.missing", { files: report.missing.join(", ") })}</p>`}
    </div>`;
}

/** The whole report; the work can be stopped. @param {unknown} question */
function useWhole(question) {
  const { language } = useText();
  const [progress, setProgress] = useState(null);
  const [stop, setStop] = useState(null);
  const asked = useAsked(question, (_, signal) => {
    const own = new AbortController();
    signal.addEventListener("abort", () => own.abort());
    setStop(() => () => own.abort());
    setProgress(null);
    const onProgress = (told) => !signal.aborted && setProgress(told);
    return streamFetch("calibrate/accuracy", language, { signal: own.signal, onProgress }).catch((error) => {
      if (error.name === "AbortError" && !signal.aborted) return { stopped: true };
      throw error;
    });
  }, { also: [language] });
  return { ...asked, progress, stop: () => stop?.() };
}

/** @param {{progress: {done: number, of: number} | null, stop: () => void}} given */
function Busy({ progress, stop }) {
  const { t, amount } = useText();
  const known = progress?.of ? progress : null;
  const said = known ? t("calibrate.accuracy.busy_of", { done: amount(known.done), of: amount(known.of) }) : t("calibrate.accuracy.busy");
  return html`
    <div class="calibrate-waiting" role="status">
      <p class="calibrate-progress"><progress max=${known?.done ? known.of : null} value=${known?.done ? known.done : null} aria-label=${said}></progress> <span>${said}</span>
        <button type="button" class="link" onClick=${stop}>${t("calibrate.cancel")}</button></p>
      <p class="quiet-text">${t("calibrate.accuracy.soon")}</p>
    </div>`;
}

/** What to put where. @param {{answer: any}} given */
function NoData({ answer }) {
  const { t } = useText();
  return html`
    <${Card} id="calibrate-no-data" title=${t("calibrate.accuracy.no_data")}>
      <p class="calibrate-empty">${t("calibrate.accuracy.no_data_about", { variable: answer.variable })}</p>
      <ul class="plain">${answer.files.map((file) => html`<li key=${file}><code>${file}</code></li>`)}</ul>
      <p class="calibrate-empty">${t("calibrate.accuracy.no_data_cli")}</p>
      <pre class="calibrate-code">crosszone accuracy my-runs.csv</pre>
    <//>`;
}
