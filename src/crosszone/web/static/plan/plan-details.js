import { html } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { postJson } from "../lib/api.js";
import { fileName, saveText } from "../lib/save.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { AllSettings, Blocks } from "../components/strategy.js";
import { MoveStages } from "./move-stages.js";
import { usePlanWords } from "./words.js";

/** How the shown plan is done: every option, where each stage lies, stages to move, and the plan as a scenario to keep. @param {{places: any}} given */
export function PlanDetails({ places }) {
  const { t, language } = useText();
  const { body, plan, prediction, chosen, way } = useAnswers();
  const { name } = useScenario();
  const { nameOf } = usePlanWords();
  if (!prediction) return null;
  const save = async () => {
    const { yaml } = await postJson("scenarios/describe", body, language);
    saveText(yaml, `${fileName(name ?? "scenario")}-${fileName(nameOf(chosen))}.yaml`, "application/yaml");
  };
  return html`
    <p class="bar"><button type="button" onClick=${save}>${t("plan.details.export")}</button><span class="hint">${t("plan.details.export_about")}</span></p>
    <${MoveStages} places=${places} />
    ${way?.placement && html`<${Blocks} placement=${way.placement} idle=${(plan?.idle ?? []).map(({ count, reason }) => ({ count, reason: reason.message }))} />`}
    <${AllSettings} settled=${prediction.strategy} />`;
}
