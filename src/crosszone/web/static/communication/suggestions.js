import { html } from "../lib/dom.js";
import { usePart } from "../lib/requests.js";
import { Card } from "../components/card.js";
import { More } from "../components/more.js";
import { useText } from "../lib/text.js";
import { LongControl, Refused, useLong } from "./long.js";
import { useWords } from "./words.js";

/** Switches that help, for the way shown. @param {any} body */
export function useSuggestions(body) {
  const { language } = useText();
  return usePart("suggestions", body, language);
}

/** What would help, the best first: each predicted with only that changed, each to be applied. */
export function Suggestions({ suggested, body, applying }) {
  const { t, label } = useText();
  const { said } = useWords();
  const found = suggested.answer;
  const title = t("communication.suggest.heading");
  return html`
    <${Card} id="suggestions" title=${title} aside=${found && label(`bound_${found.boundness}`)}>
      <${Refused} notices=${suggested.notices} failed=${suggested.failed} />
      ${!found && !suggested.notices.length && html`<p class="empty">${t("communication.waiting")}</p>`}
      ${found && html`
        ${found.ranked.length === 0 && html`<p class="empty">${t("communication.suggest.none")}</p>`}
        <ol class="suggestions" data-count=${found.ranked.length}>
          <${More} most=${6} items=${found.ranked} row=${(one) => html`<${Suggestion} key=${`${one.switch} ${one.value}`} one=${one} applying=${applying} />`} />
        </ol>
        <${Together} together=${found.together} applying=${applying} />
        <${Plans} body=${body} applying=${applying} />
        ${found.idle.length > 0 && html`<p class="note-line">${said("suggest_idle", { switches: found.idle.join(label("comma")) })}</p>`}
        <${NotHere} refused=${found.refused} />`}
    <//>`;
}

function Suggestion({ one, applying }) {
  const { t, label, amount } = useText();
  const { gain, change, value } = useWords();
  const title = `${one.switch} = ${value(one.value)}`;
  return html`
    <li class="suggestion" data-switch=${one.switch}>
      <strong class="gain"><data value=${one.gain}>${gain(one.gain)}</data><span class="below">${label("what_if_speed")}</span></strong>
      <div>
        <p><strong>${one.title}</strong> <code>${title}</code></p>
        <p class="quiet-text">${t("communication.suggest.becomes", { step: amount(one.step_s), exposed: change(one.exposed_s) })}</p>
        <p>${one.option === null ? html`<span class="quiet-text">${label("suggest_no_option")}</span>` : html`<code class="option">${one.option}</code>`}</p>
        <p class=${one.exact ? "exact" : "risk"}>${one.exact ? label("suggest_same") : one.risk} ${one.source && html`<span class="hint">${one.source}</span>`}</p>
      </div>
      <button type="button" class="primary" onClick=${() => applying.apply(one.changes, title)} aria-label=${`${t("communication.apply")} ${title}`}>${t("communication.apply")}</button>
    </li>`;
}

/** The exact ones turned together. */
function Together({ together, applying }) {
  const { t, label } = useText();
  const { gain } = useWords();
  if (!together || together.switches.length < 2) return null;
  const words = together.switches.join(label("comma"));
  return html`
    <div class="suggestion together">
      <strong class="gain"><data value=${together.gain}>${gain(together.gain)}</data><span class="below">${label("what_if_speed")}</span></strong>
      <div><p><strong>${t("communication.suggest.together")}</strong></p><p><code>${words}</code></p></div>
      <button type="button" class="primary" onClick=${() => applying.apply(together.changes, words)} aria-label=${`${t("communication.apply")} ${words}`}>${t("communication.apply")}</button>
    </div>`;
}

/** Plans that are free to choose everything, looked for on demand. */
function Plans({ body, applying }) {
  const { t, label, framework, amount } = useText();
  const { gain } = useWords();
  const long = useLong("plans", "analyse");
  const plans = long.answer?.suggestions.plans;
  const degrees = (one) => Object.entries(one.degrees).filter(([, degree]) => degree > 1).map(([name, degree]) => `${name} ${degree}`).join(" ");
  return html`
    <div class="other-plans">
      <${LongControl} long=${long} subject=${body} words=${t("communication.suggest.look")} begin=${() => long.start({ ...body, parts: ["suggestions"], plans: true }, body)} />
      ${plans && plans.length === 0 && html`<p class="note-line">${t("communication.suggest.no_plan")}</p>`}
      ${plans && html`
        <ul class="suggestions">
          ${plans.map((one) => {
            const title = `${label(`plan_kind_${one.kind}`)}: ${framework(one.framework)} ${degrees(one)}`;
            return html`
              <li class="suggestion" key=${title}>
                <strong class="gain"><data value=${one.gain}>${gain(one.gain)}</data><span class="below">${label("what_if_speed")}</span></strong>
                <div><p><strong>${title}</strong></p><p class="quiet-text">${t("communication.suggest.plan_step", { step: amount(one.step_s) })}</p></div>
                <button type="button" class="primary" onClick=${() => applying.apply(one.changes, title)} aria-label=${`${t("communication.apply")} ${title}`}>${t("communication.apply")}</button>
              </li>`;
          })}
        </ul>`}
    </div>`;
}

/** Switches that cannot be turned here, each with its reason. */
function NotHere({ refused }) {
  const { t } = useText();
  const { value } = useWords();
  if (!refused.length) return null;
  return html`
    <details class="settings">
      <summary>${t("communication.suggest.refused", { count: refused.length })}</summary>
      <ul class="plain">
        ${refused.map((one) => html`
          <li key=${`${one.switch} ${one.value}`}><code>${one.switch} = ${value(one.value)}</code> ${one.reason.message} <span class="hint">${one.reason.hint}</span></li>`)}
      </ul>
    </details>`;
}
