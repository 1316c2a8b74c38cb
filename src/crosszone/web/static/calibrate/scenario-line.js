import { html } from "../lib/dom.js";
import { linkTo } from "../lib/address.js";
import { useAnswers } from "../lib/answers.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";

/** Which scenario the file is taken to be of, or for. @param {{change: any, words?: string}} given */
export function ScenarioLine({ change, words = "calibrate.scenario" }) {
  const { t } = useText();
  const { time } = useTime();
  const { prediction, stale } = useAnswers();
  if (!prediction) return null;
  const go = (event) => (event.preventDefault(), change({ place: null, tab: null, kind: null }));
  return html`
    <p class="calibrate-scenario" aria-busy=${stale}>
      ${t(words, { name: prediction.name, step: time(prediction.step_time_s.expected) })}${" "}
      <a href=${linkTo({ place: null, tab: null, kind: null })} onClick=${go}>${t("calibrate.scenario_change")}</a>
    </p>`;
}
