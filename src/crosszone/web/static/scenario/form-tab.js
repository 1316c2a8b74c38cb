import { html, useEffect, useState } from "../lib/dom.js";
import { fetchJson } from "../lib/api.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { ClusterStep } from "./cluster-step.js";
import { FormContext, STEPS, useFormState } from "./form.js";
import { JobStep } from "./job-step.js";
import { Lists, ListsContext, useListsState } from "./lists.js";
import { ModelStep } from "./model-step.js";
import { OptionsStep } from "./options-step.js";
import { StepFoot } from "./step-foot.js";
import { StepNav } from "./step-nav.js";

const PARTS = { cluster: ClusterStep, model: ModelStep, job: JobStep, options: OptionsStep };

/** The steps from a cluster to a plan. @param {{address: any, change: any, finish: () => void}} given finish: the answer is wanted */
export function FormTab({ address, change, finish }) {
  const { t, language } = useText();
  const scenario = useScenario();
  const lists = useListsState();
  const [schema, setSchema] = useState(null);
  const form = useFormState(scenario, schema);
  const step = STEPS.includes(address.step) ? address.step : STEPS[0];
  const go = (next) => change({ step: next === STEPS[0] ? null : next }, { step: false });
  useEffect(() => {
    fetchJson("schema/scenario", language).then(setSchema, () => {});
  }, []);

  if (scenario.lost || (scenario.failed && !scenario.fields)) {
    return html`<p class="said-block" role="alert">${scenario.lost?.message || t("failed")} ${scenario.lost?.notices[0]?.hint}</p>`;
  }
  if (!schema || !scenario.fields) return html`<div class="steps-body" aria-busy="true"></div>`;
  if (!scenario.readable && scenario.notices.length) {
    return html`
      <div class="empty-state">
        <p>${t("form.unreadable")}</p>
        <button type="button" onClick=${() => change({ tab: "text" }, { step: false })}>${t("form.open_text")}</button>
      </div>`;
  }
  const Part = PARTS[step];
  return html`
    <${FormContext.Provider} value=${form}>
      <${ListsContext.Provider} value=${lists}>
        <${Lists} />
        <${StepNav} step=${step} go=${go} />
        <div class="steps-body" key=${`${scenario.name} ${step}`} data-step=${step}><${Part} /></div>
        <${StepFoot} step=${step} go=${go} failed=${scenario.failed} finish=${() => { change({ place: null }); finish(); }} />
      <//>
    <//>`;
}
