import { html } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useText } from "../lib/text.js";
import { useForm } from "./form.js";
import { PinField, withPin } from "./pin.js";
import { keysOf } from "./shape.js";

const OBJECTIVES = ["time", "cost", "memory", "energy"];
const DEGREES = ["tp", "pp", "dp", "cp", "ep", "micro_batch"];
const GROUPS = ["communication", "local_update"];

/** What to rank plans by, and what of the strategy is decided already: everything else is searched. */
export function OptionsStep() {
  const { t, amount } = useText();
  const { fields, setAll, schema } = useForm();
  const { objective, rankBy, way, plan } = useAnswers();
  const { strategy, placement } = fields;
  const rest = keysOf(schema, "Strategy").filter((key) => ![...DEGREES, ...GROUPS].includes(key));
  const unpin = () => {
    const { strategy: _s, placement: _p, ...free } = fields;
    setAll(free);
  };
  const pinAll = () => setAll({
    ...fields,
    job: { ...fields.job, framework: way.framework },
    strategy: spoken(way.strategy),
    ...(way.placement ? { placement: way.placement } : {}),
  });
  const part = (title, owner, keys, path) => html`
    <fieldset>
      <legend>${title}</legend>
      <div class="fields">${keys.map((key) => html`<${PinField} key=${key} owner=${owner} path=${[...path, key]} plan=${plan} />`)}</div>
    </fieldset>`;
  return html`
    <fieldset>
      <legend>${t("form.objective")}</legend>
      <div class="segmented objectives" role="group" aria-label=${t("form.objective")}>
        ${OBJECTIVES.map((one) => html`<button type="button" aria-pressed=${String(objective === one)} onClick=${() => rankBy(one)}>${t(`form.objective_${one}`)}</button>`)}
      </div>
    </fieldset>
    <div class="part-head">
      <p class="aside">${t("form.pin_about")}</p>
      <span class="grow"></span>
      <button type="button" class="small" disabled=${!way} onClick=${pinAll} title=${t("form.pin_shown_title")}>${t("form.pin_shown")}</button>
      <button type="button" class="small" disabled=${!strategy && !placement} onClick=${unpin}>${t("form.unpin_all")}</button>
    </div>
    ${part(t("form.degrees"), "Strategy", DEGREES, ["strategy"])}
    ${part(t("form.details"), "Strategy", rest, ["strategy"])}
    <details class="rest"><summary>${t("form.communication")}</summary>
      <div class="fields">${keysOf(schema, "Communication").map((key) => html`<${PinField} key=${key} owner="Communication" path=${["strategy", "communication", key]} plan=${plan} />`)}</div>
    </details>
    <${LocalUpdate} plan=${plan} />
    ${placement && html`
      <p class="placement-given" data-field="placement" tabindex="-1">
        ${t("form.placement", { count: amount(placement.blocks?.length ?? 0) })}
        ${" "}<button type="button" class="link" onClick=${() => setAll(withoutPlacement(fields))}>${t("form.remove")}</button>
      </p>`}`;
}

/** Zones that train on their own and average now and then: all of it is pinned, or none. */
function LocalUpdate({ plan }) {
  const { t } = useText();
  const { schema, fields, at, setAll } = useForm();
  const path = ["strategy", "local_update"];
  const given = at(path);
  const start = plan?.strategy.local_update ?? { steps: 100 };
  return html`
    <fieldset class="group">
      <legend>
        <label><input type="checkbox" data-field="strategy.local_update" checked=${Boolean(given)} onChange=${(event) => setAll(withPin(fields, path, event.target.checked ? start : undefined))} />
          ${" "}${t("form.local_update")}</label>
      </legend>
      ${given && html`<div class="fields">${keysOf(schema, "LocalUpdate").map((key) => html`<${PinField} key=${key} owner="LocalUpdate" path=${[...path, key]} plan=${plan} fixed />`)}</div>`}
    </fieldset>`;
}

const withoutPlacement = ({ placement: _, ...rest }) => rest;

/** A plan's strategy without what it leaves open. @param {any} strategy */
const spoken = (strategy) => Object.fromEntries(
  Object.entries(strategy)
    .filter(([, value]) => value !== null)
    .map(([key, value]) => [key, value && typeof value === "object" && !Array.isArray(value) ? spoken(value) : value]),
);
