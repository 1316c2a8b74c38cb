import { html } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";

const MOST = 6;

/**
 * Why there is no bundle, and the ways out of it.
 * @param {{notices: import("../lib/api.js").Notice[], framework: string | null, change: any}} given framework: the one asked for; null: the plan's own
 */
export function Refusal({ notices, framework, change }) {
  const { t, framework: called } = useText();
  const { setField } = useScenario();
  const { plans, way, choose } = useAnswers();
  const told = notices.filter((one) => !one.field.startsWith("settings.")); // those stand beside their field
  if (!told.length) return null;
  const codes = told.map((one) => one.code);
  const put = (changes) => change(changes, { step: false });
  const other = framework && framework !== way?.framework && framework !== "torchft";
  const averaged = codes.includes("torchft_without_local_update") && plans?.local_updates.length > 0;
  const replan = () => {
    setField(["job", "framework"], framework);
    put({ framework: null, plan: null });
  };
  return html`
    <div class="refusal" role="alert" data-refusal=${codes[0]}>
      <h3>${t("deploy.refused")}</h3>
      <ul>
        ${told.slice(0, MOST).map((one, at) => html`
          <li key=${one.message}>${one.message} ${one.hint !== told[at + 1]?.hint && html`<span class="hint">${one.hint}</span>`}</li>`)}
      </ul>
      <p class="deploy-ways">
        ${codes.includes("launch_no_address") && html`
          <button type="button" onClick=${() => put({ template: "1" })}>${t("deploy.leave_open")}</button>
          <button type="button" onClick=${focusHosts}>${t("deploy.type_addresses")}</button>
          <button type="button" onClick=${() => put({ tab: "text" })}>${t("deploy.open_text")}</button>`}
        ${averaged && html`<button type="button" onClick=${() => choose("L1")}>${t("deploy.take_local")}</button>`}
        ${other && !codes.includes("launch_no_address") && html`<button type="button" onClick=${replan}>${t("deploy.replan", { framework: called(framework) })}</button>`}
        ${framework && html`<button type="button" onClick=${() => put({ framework: null })}>${t("deploy.plans_own")}</button>`}
      </p>
    </div>`;
}

/** Bring the first address that is missing under the cursor. */
function focusHosts() {
  const card = document.querySelector("[data-hosts]");
  for (const group of card?.querySelectorAll("details") ?? []) group.open = true;
  const fields = [...(card?.querySelectorAll("input[data-host=address]") ?? [])];
  const first = /** @type {HTMLInputElement} */ (fields.find((field) => !(/** @type {HTMLInputElement} */ (field).value)) ?? fields[0]);
  first?.focus();
  first?.scrollIntoView({ block: "center" });
}
