import { html } from "../lib/dom.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { Links } from "../components/links.js";
import { ModelParameters } from "../components/model-parameters.js";
import { StrategyAnswer } from "../components/strategy.js";
import { Zones } from "../components/zones.js";

/** The inputs read back: what the numbers rest on, with the origin of every figure. */
export function Inputs() {
  const { t } = useText();
  const { description } = useScenario();
  if (!description) return null;
  return html`
    <details class="inputs">
      <summary><h2>${t("plan.inputs.heading")}</h2> <span class="aside">${t("plan.inputs.about")}</span></summary>
      <${Counts} description=${description} />
      <${Zones} cluster=${description.cluster} />
      <${Links} links=${description.cluster.links} />
      <${ModelParameters} model=${description.model} job=${description.job} />
      <${StrategyAnswer} strategy=${description.strategy} />
    </details>`;
}

/** GPUs, zones, parameters, tokens and steps of the scenario. */
function Counts({ description }) {
  const { t, amount, billions, compact } = useText();
  const { model, job, cluster, strategy, legal } = description;
  const verdict = !legal ? "illegal" : strategy ? "legal" : "open";
  const errors = description.notices.filter((notice) => notice.level === "error").length;
  const mixed = model.parameters.active !== model.parameters.total;
  const tiles = [
    ["verdict", t(`strip.${verdict}`), verdict === "illegal" ? t("strip.errors", { count: errors }) : t(`strip.${verdict}_below`)],
    ["gpus", amount(cluster.gpus), t("strip.nodes", { count: amount(cluster.nodes) })],
    ["zones", amount(cluster.zones.length), t("strip.links", { count: amount(cluster.links.length) })],
    ["parameters", billions(model.parameters.total), mixed ? t("strip.active", { count: billions(model.parameters.active) }) : model.name],
    ["tokens_per_step", amount(job.tokens_per_step), t("strip.batch", { seq: amount(job.seq_len), batch: amount(job.global_batch) })],
    ["steps", amount(job.steps), job.total_tokens ? t("strip.tokens", { count: compact(job.total_tokens) }) : t("strip.endless")],
  ];
  return html`
    <dl class="strip">
      ${tiles.map(([key, value, below]) => html`
        <div class=${`tile ${key} ${key === "verdict" ? verdict : ""}`} key=${key}>
          <dt>${t(`strip.${key}`)}</dt><dd data-figure=${key}>${value}</dd><dd class="below">${below}</dd>
        </div>`)}
    </dl>`;
}
