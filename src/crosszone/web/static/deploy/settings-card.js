import { html } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { zonesOf } from "../scenario/zone-edits.js";
import { isRead } from "./launch-settings.js";
import { SettingField } from "./setting-field.js";

const GROUPS = ["network", "folders", "launcher", "training"];

/**
 * What the bundle is made for and what starts it, and the settings no plan knows.
 * @param {{choices: any, framework: string | null, launcher: string, template: boolean, settings: import("./launch-settings.js").Settings, change: any,
 *   notices: import("../lib/api.js").Notice[], own: string | undefined}} given own: the framework the last bundle was made for
 */
export function SettingsCard({ choices, framework, launcher, template, settings, change, notices, own }) {
  const { t } = useText();
  const { way } = useAnswers();
  const called = (name) => choices.frameworks.find((one) => one.name === name)?.title ?? name;
  const planned = way?.framework ?? (framework ? null : own);
  const aboutFramework = choices.frameworks.find((one) => one.name === (framework ?? own ?? planned))?.about;
  const starter = choices.launchers.find((one) => one.name === launcher);
  const put = (changes) => change(changes, { step: false });
  const wrong = (name) => notices.find((one) => one.field.replace(/^settings\./, "") === name);
  return html`
    <${Card} id="deploy-settings" title=${t("deploy.heading")} aside=${t("deploy.about")}>
      <div class="deploy-choosers">
        <label>
          <span>${t("deploy.framework")}</span>
          <select data-choose="framework" value=${framework ?? ""} aria-describedby="deploy-framework-about" onChange=${(event) => put({ framework: event.target.value || null })}>
            <option value="" selected=${!framework}>${planned ? t("deploy.plans_own_named", { framework: called(planned) }) : t("deploy.plans_own")}</option>
            ${choices.frameworks.map((one) => html`<option key=${one.name} value=${one.name} selected=${one.name === framework}>${one.title}</option>`)}
          </select>
          <span class="field-note" id="deploy-framework-about">${aboutFramework}</span>
        </label>
        <label>
          <span>${t("deploy.launcher")}</span>
          <select data-choose="launcher" value=${launcher} aria-describedby="deploy-launcher-about" onChange=${(event) => put({ launcher: event.target.value === "nodes" ? null : event.target.value })}>
            ${choices.launchers.map((one) => html`<option key=${one.name} value=${one.name} selected=${one.name === launcher}>${one.title}</option>`)}
          </select>
          <span class="field-note" id="deploy-launcher-about">${starter.about}</span>
        </label>
        <label class="deploy-check">
          <input type="checkbox" data-choose="template" checked=${template} aria-describedby="deploy-template-about" onChange=${(event) => put({ template: event.target.checked ? "1" : "0" })} />
          <span>${t("deploy.template")}</span>
          <span class="field-note" id="deploy-template-about">${t("deploy.template_about")}</span>
        </label>
      </div>
      ${GROUPS.map((group) => html`
        <${Group} key=${group} group=${group} read=${choices.settings.filter((one) => one.group === group && isRead(one, launcher))} settings=${settings} wrong=${wrong} />`)}
    <//>`;
}

/** Settings that belong together, folded away until they are wanted or wrong. */
function Group({ group, read, settings, wrong }) {
  const { t } = useText();
  const { fields } = useScenario();
  const zones = zonesOf(fields).map((zone) => String(zone?.name ?? "")).filter(Boolean);
  const asked = read.flatMap((one) => (one.kind === "zones" ? zones.map((zone) => ({ ...one, name: `${one.name}.${zone}`, title: `${one.title}: ${zone}` })) : [one]));
  const changed = settings.given.filter(([name]) => asked.some((one) => one.name === name)).length;
  const failing = asked.some((one) => wrong(one.name));
  if (!asked.length) return null;
  return html`
    <details class="deploy-group" data-group=${group} open=${failing || null}>
      <summary>${t(`deploy.group.${group}`)} <span class="quiet-text">${changed ? t("deploy.changed", { count: changed }) : t("deploy.unchanged")}</span></summary>
      <div class="deploy-fields">
        ${asked.map((one) => html`
          <${SettingField} key=${one.name} setting=${one} value=${settings.values[one.name] ?? ""} set=${(text) => settings.set(one.name, text)} notice=${wrong(one.name)} />`)}
      </div>
    </details>`;
}
