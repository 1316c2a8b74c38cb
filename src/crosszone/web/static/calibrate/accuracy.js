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

/** How far predictions are from what was measured: runs of this server, and measured data that lies on it. @param {{change: any, learn: () => void}} given */
export function Accuracy({ change, learn }) {
  const { t, language } = useText();
  const [again, setAgain] = useState(0);
  const [stop, setStop] = useState(null);
  const question = useMemo(() => ({ again }), [again]);
  const asked = useAsked(question, (_, signal) => {
    const own = new AbortController();
    signal.addEventListener("abort", () => own.abort());
    setStop(() => () => own.abort());
    return streamFetch("calibrate/accuracy", language, { signal: own.signal }).catch((error) => {
      if (error.name === "AbortError" && !signal.aborted) return { stopped: true };
      throw error;
    });
  }, { also: [language] });
  const answer = asked.answer;
  const report = answer?.report ?? null;
  return html`
    <${RunsCard} change=${change} learn=${learn} />
    <div aria-busy=${asked.busy}>
      <${Refusals} notices=${asked.notices} failed=${asked.failed} />
      ${asked.busy && html`
        <p class="calibrate-progress" role="status"><progress aria-label=${t("calibrate.accuracy.busy")}></progress> ${t("calibrate.accuracy.busy")}
          <button type="button" class="link" onClick=${() => stop?.()}>${t("calibrate.cancel")}</button></p>`}
      ${!asked.busy && answer?.stopped && html`<p class="calibrate-progress">${t("calibrate.stopped")} <button type="button" class="link" onClick=${() => setAgain(again + 1)}>${t("calibrate.again")}</button></p>`}
      ${answer?.present === false && html`
        <${Card} id="calibrate-no-data" title=${t("calibrate.accuracy.no_data")}>
          <p class="calibrate-empty">${t("calibrate.accuracy.no_data_about", { variable: answer.variable })}</p>
          <ul class="plain">${answer.files.map((file) => html`<li key=${file}><code>${file}</code></li>`)}</ul>
          <p class="calibrate-empty">${t("calibrate.accuracy.no_data_cli")}</p>
          <pre class="calibrate-code">crosszone accuracy my-runs.csv</pre>
        <//>`}
      ${report && html`
        ${report.own && html`<p class="calibrate-note">${t("calibrate.accuracy.own", { name: report.own })}</p>`}
        <${SourcesCard} report=${report} />
        <div class="calibrate-pair">
          <${ScatterCard} runs=${report.runs} />
          ${report.components && html`<${ComponentsCard} table=${report.components} />`}
        </div>
        <div class="calibrate-pair">
          ${report.shares.length > 0 && html`<${SharesCard} shares=${report.shares} />`}
          ${report.stability.length > 0 && html`<${SteadinessCard} runs=${report.stability} />`}
        </div>
        ${report.missing.length > 0 && html`<p class="calibrate-note">${t("calibrate.accuracy.missing", { files: report.missing.join(", ") })}</p>`}`}
    </div>`;
}
