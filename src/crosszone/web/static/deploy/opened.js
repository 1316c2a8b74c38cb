import { html } from "../lib/dom.js";
import { GIVEN } from "../lib/answers.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";

/** That a saved bundle is shown, with the way back and to its scenario. @param {{saved: any, leave: () => void, change: any}} given saved: null: it is not there (yet) */
export function OpenedBundle({ saved, leave, change }) {
  const { t, language } = useText();
  const scenario = useScenario();
  const plan = saved?.bundle.files.find((one) => one.path === "plan.yaml");
  const when = saved && new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" }).format(new Date(saved.created));
  const open = () => {
    scenario.importText(`file:${saved.name}`, plan.text);
    change({ bundle: null, file: null, framework: null, plan: GIVEN });
  };
  return html`
    <div class="deploy-opened" role="status">
      <p>${saved ? t("deploy.opened", { name: saved.name, when }) : t("deploy.opening")}</p>
      ${plan && html`<button type="button" onClick=${open}>${t("deploy.open_scenario")}</button>`}
      <button type="button" onClick=${leave}>${t("deploy.leave")}</button>
    </div>`;
}
