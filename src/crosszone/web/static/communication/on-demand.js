import { html, useState } from "../lib/dom.js";
import { useScenario } from "../lib/scenario.js";
import { Card } from "../components/card.js";
import { useText } from "../lib/text.js";
import { Drill } from "./drill.js";
import { LongControl, useLong } from "./long.js";
import { Marginal } from "./marginal.js";

/** Questions that plan many clusters anew: each is asked on demand. */
export function OnDemand() {
  const { t, label } = useText();
  const { body } = useScenario();
  const drill = useLong("drill", "analyse");
  const marginal = useLong("marginal", "analyse");
  const front = useLong("front", "analyse");
  const [failures, setFailures] = useState("1");
  const many = Number(failures);
  const good = failures.trim() !== "" && many >= 0 && many <= 1000;
  const ask = (long, part, more = {}) => () => long.start({ ...body, parts: [part], ...more }, body);
  return html`
    <${Card} id="marginal" title=${label("marginal_title")} aside=${t("communication.marginal_about")}>
      <div class="card-bar"><${LongControl} long=${marginal} subject=${body} words=${t("communication.marginal_run")} begin=${ask(marginal, "marginal")} /></div>
      ${marginal.answer && html`<${Marginal} found=${marginal.answer.marginal} />`}
    <//>
    <${Card} id="drill" title=${label("drill_title")} aside=${t("communication.drill_about")}>
      <div class="card-bar">
        <label>${t("communication.failures")} <input type="number" class="short" min="0" max="1000" step="any" value=${failures} aria-invalid=${good ? null : "true"} onInput=${(event) => setFailures(event.target.value)} /></label>
        <${LongControl} long=${drill} subject=${body} disabled=${!good} words=${t("communication.drill_run")} begin=${ask(drill, "drill", { zone_failures_per_year: many })} />
      </div>
      ${!good && html`<p class="note-line wrong" role="alert">${t("communication.failures_wrong")}</p>`}
      ${drill.answer && html`<${Drill} found=${drill.answer.drill} />`}
    <//>
    <${Card} id="money" title=${t("communication.front_heading")} aside=${t("communication.front_about")}>
      <div class="card-bar"><${LongControl} long=${front} subject=${body} words=${t("communication.front_run")} begin=${ask(front, "front")} /></div>
      ${front.answer && html`
        <ul class="remarks">
          ${front.answer.front.map((one) => html`<li key=${one.told.message}>${one.told.message}</li>`)}
          ${front.answer.front.length === 0 && html`<li>${label("front_alone")}</li>`}
        </ul>`}
    <//>`;
}
