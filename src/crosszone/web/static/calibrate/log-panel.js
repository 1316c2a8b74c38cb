import { html } from "../lib/dom.js";
import { linkTo } from "../lib/address.js";
import { useAnswers } from "../lib/answers.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { Drop } from "./drop.js";
import { useFileWork } from "./file-work.js";
import { FitFound } from "./fit-found.js";
import { Iterations } from "./iterations.js";
import { ScenarioLine } from "./scenario-line.js";

/** A log of the run that Plan shows: what it says, and values that make the prediction meet it. @param {{own: import("./own.js").Own, change: any}} given */
export function LogPanel({ own, change }) {
  const { t } = useText();
  const { body } = useAnswers();
  const work = useFileWork("calibrate/logs", () => body ?? {});
  return html`
    <${Card} id="calibrate-log" title=${t("calibrate.log.heading")} aside=${t("calibrate.log.about")}>
      <p class="calibrate-empty">${t("calibrate.log.how")}</p>
      <${ScenarioLine} change=${change} />
      <${Drop} id="drop-log" label=${t("calibrate.log.open")} accept=".log,.txt,.json,.jsonl,.gz,text/plain" work=${work} disabled=${!body} />
      ${!body && html`<p class="empty">${t("calibrate.log.no_scenario")} <a href=${linkTo({ place: null, tab: null })}>${t("compare.to_plan")}</a></p>`}
    <//>
    ${work.found?.iterations && html`<${Iterations} found=${work.found.iterations} />`}
    ${work.found && html`<${FitFound} found=${work.found} own=${own} />`}`;
}
