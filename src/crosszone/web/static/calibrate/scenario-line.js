import { html } from "../lib/dom.js";
import { linkTo } from "../lib/address.js";
import { GIVEN, OWN, useAnswers } from "../lib/answers.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";

/** Links are of the scenario, whatever its plan. */
const LINKS = "calibrate.scenario_links";

/** Which scenario and which of its plans the file is taken to be of, or for. @param {{change: any, words?: string}} given */
export function ScenarioLine({ change, words = "calibrate.scenario" }) {
  const { t } = useText();
  const { time } = useTime();
  const scenario = useScenario();
  const { prediction, stale, planning, chosen, choose } = useAnswers();
  if (!prediction) return null;
  const go = (event) => (event.preventDefault(), change({ place: null, tab: null, kind: null }));
  const written = Boolean(scenario.fields?.strategy);
  const way = chosen === GIVEN ? "written" : chosen === OWN ? "own" : "found";
  const counts = words !== LINKS;
  return html`
    <p class="calibrate-scenario" aria-busy=${stale || planning !== null}>
      ${t(words, { name: prediction.name, step: time(prediction.step_time_s.expected) })}${" "}
      ${counts && chosen && html`<span data-way=${chosen}>${t(`calibrate.way.${way}`, { plan: chosen })}</span>${" "}`}
      ${counts && written && chosen !== GIVEN && html`<button type="button" class="link" onClick=${() => choose(GIVEN)}>${t("calibrate.way.take_written")}</button>${" · "}`}
      <a href=${linkTo({ place: null, tab: null, kind: null })} onClick=${go}>${t("calibrate.scenario_change")}</a>
    </p>`;
}
