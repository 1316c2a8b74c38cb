import { html } from "../lib/dom.js";
import { linkTo } from "../lib/address.js";
import { useAnswers } from "../lib/answers.js";
import { useText } from "../lib/text.js";

/** What the numbers rest on: stack, profiles of the GPUs, the user's own profile, and errors of operators where they were measured. */
export function Basis() {
  const { t, amount } = useText();
  const { prediction } = useAnswers();
  if (!prediction) return null;
  const { stack, gpu_profiles: gpus, own_profile: own, measured, operators } = prediction.basis;
  const error = ([family, one]) => `${t(`calibrate.family.${family.replaceAll(" ", "_")}`)} ${amount(Number(one.error_pct.toPrecision(2)))} %`;
  const errors = Object.entries(operators ?? {}).map(([gpu, families]) => t("plan.basis_operators", { gpu, errors: Object.entries(families).map(error).join(", ") }));
  const kinds = Object.entries(gpus).map(([gpu, family]) => (gpu === family ? gpu : `${gpu}: ${family}`));
  const place = { place: "calibrate", tab: null, kind: null };
  return html`
    <p class="plan-basis quiet-text" data-basis=${own ?? ""}>
      ${t(measured ? "plan.basis" : "plan.basis_derived", { stack, gpus: kinds.join(", ") })}
      ${own && html` <strong>${t("plan.basis_own", { name: own })}</strong>`}
      ${errors.map((one) => html` <span key=${one} data-operators>${one}</span>`)}
      ${" "}<a href=${linkTo(place)}>${t("places.calibrate")}</a>
    </p>`;
}
