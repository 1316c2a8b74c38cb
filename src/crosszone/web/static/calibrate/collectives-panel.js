import { html } from "../lib/dom.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { Drop } from "./drop.js";
import { useFileWork } from "./file-work.js";
import { LinksFound } from "./links-found.js";
import { ScenarioLine } from "./scenario-line.js";

/** Collectives that were measured between processes: what they say of links, and the scenario with these links. @param {{change: any}} given */
export function CollectivesPanel({ change }) {
  const { t } = useText();
  const scenario = useScenario();
  const work = useFileWork("calibrate/collectives", () => scenario.body ?? {});
  const put = (text) => {
    scenario.importText(`file:${(scenario.name ?? "scenario").replace(/^\w+:/, "")}`, text);
    change({ place: null, tab: null, kind: null, plan: null });
  };
  return html`
    <${Card} id="calibrate-collectives" title=${t("calibrate.collectives.heading")} aside=${t("calibrate.collectives.about")}>
      <p class="calibrate-empty">${t("calibrate.collectives.how")}</p>
      <pre class="calibrate-code">crosszone calibrate collectives --zones a,a,b,b -o collectives.csv</pre>
      <${ScenarioLine} change=${change} words="calibrate.scenario_links" />
      <${Drop} id="drop-collectives" label=${t("calibrate.collectives.open")} accept=".csv,text/csv" work=${work} />
    <//>
    ${work.found && html`<${LinksFound} found=${work.found} put=${put} />`}`;
}
