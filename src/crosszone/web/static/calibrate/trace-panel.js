import { html, useState } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { Drop } from "./drop.js";
import { useFileWork } from "./file-work.js";
import { ImportFound } from "./import-found.js";
import { ScenarioLine } from "./scenario-line.js";

/** A trace, a profiler's file or benchmark.csv: its iterations and phases, beside the prediction where one is shown. @param {{change: any}} given */
export function TracePanel({ change }) {
  const { t } = useText();
  const { body } = useAnswers();
  const [beside, setBeside] = useState(true);
  const [iteration, setIteration] = useState("best");
  const question = (more) => ({ iteration: more?.iteration ?? iteration, ...((more?.beside ?? beside) && body ? body : {}) });
  const work = useFileWork("calibrate/traces", question);
  const choose = (word) => {
    setIteration(word);
    work.look({ iteration: word });
  };
  const compare = (on) => {
    setBeside(on);
    work.look({ beside: on });
  };
  const bodyOf = (name) => ({ what: "trace", file: work.file.id, name, iteration, ...(beside && body ? body : {}) });
  return html`
    <${Card} id="calibrate-trace" title=${t("calibrate.trace.heading")} aside=${t("calibrate.trace.about")}>
      <p class="calibrate-empty">${t("calibrate.trace.how")}</p>
      ${body && html`
        <label class="calibrate-check padded"><input type="checkbox" checked=${beside} onChange=${(event) => compare(event.target.checked)} /> ${t("calibrate.trace.beside")}</label>
        ${beside && html`<${ScenarioLine} change=${change} />`}`}
      <${Drop} id="drop-trace" label=${t("calibrate.trace.open")} accept=".json,.csv,.gz,.jsonl,application/json,text/csv,application/gzip" work=${work} />
    <//>
    ${work.found && html`<${ImportFound} found=${work.found} iteration=${iteration} choose=${choose} bodyOf=${bodyOf} change=${change} />`}`;
}
