import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { Field, noticeOf } from "./field.js";
import { DEGREES } from "./request.js";

/**
 * How several environments train together: master, framework, and how the work is split.
 * @param {{asking: import("./request.js").Asking, notices: import("../lib/api.js").Notice[], entries: import("./entries.js").Entry[], frameworks: any[], chosen: any}} given
 *   chosen: what the server says of the selection; null: nothing yet
 */
export function Distributed({ asking, notices, entries, frameworks, chosen }) {
  const { t } = useText();
  const { draft, set, nodes, master } = asking;
  const framework = frameworks.find((one) => one.name === draft.framework);
  const missing = frameworks.filter((one) => !one.available);
  return html`
    <${Card} id="train-distributed" title=${t("train.distributed")} aside=${t("train.distributed_about")}>
      <div class="train-fields padded">
        ${!asking.fresh && html`<${Field} id="task-master" name="distributedConfig.masterNode" label=${t("train.master")} notice=${noticeOf(notices, "distributedConfig.masterNode")} note=${t("train.master_note")}
          input=${(common) => html`
            <select ...${common} value=${master} onChange=${(event) => asking.lead(event.target.value)}>
              ${nodes.map((id) => html`<option key=${id} value=${id} selected=${id === master}>${entries.find((entry) => entry.id === id)?.value.name ?? id}</option>`)}
            </select>`} />`}
        <${Field} id="task-framework" name="distributedConfig.framework" label=${t("train.framework")} notice=${noticeOf(notices, "distributedConfig.framework")} note=${framework && html`<strong>${framework.kind}</strong> ${framework.about}`}
          input=${(common) => html`
            <select ...${common} value=${draft.framework} onChange=${(event) => set({ framework: event.target.value })}>
              <option value="" selected=${!draft.framework}>${t("train.choose")}</option>
              ${frameworks.map((one) => html`
                <option key=${one.name} value=${one.name} selected=${one.name === draft.framework} disabled=${!one.available}>${one.available ? one.title : t("train.unavailable", { name: one.title })}</option>`)}
            </select>`} />
      </div>
      ${missing.map((one) => html`<p class="train-note" key=${one.name} data-unavailable=${one.name}><strong>${t("train.unavailable", { name: one.title })}</strong> ${one.reason}</p>`)}
      <${Split} asking=${asking} notices=${notices} entries=${entries} chosen=${chosen} />
      <p class="train-note warning">${t("train.reach_note")}</p>
      <${AcrossZones} chosen=${chosen} />
    <//>`;
}

/** The notice that says how much longer a step takes across zones. */
export const ACROSS = "task_cross_zone";

/** Across zones: how much longer a step is predicted to take. */
function AcrossZones({ chosen }) {
  const { t, amount } = useText();
  const zones = chosen?.selection.zones.length ?? 0;
  if (zones < 2) return null;
  const told = chosen.notices.find((notice) => notice.code === ACROSS);
  return html`<p class="train-note warning" data-figure="slowdown">${told ? `${told.message} ${told.hint}` : t("train.cross_unknown", { count: amount(zones) })}</p>`;
}

/** Degrees: planned, or typed and checked against the ranks. */
function Split({ asking, notices, entries, chosen }) {
  const { t, amount } = useText();
  const { draft, set } = asking;
  const ranks = asking.fresh ? chosen?.selection.gpus : asking.nodes.reduce((sum, id) => sum + (entries.find((entry) => entry.id === id)?.value.gpus || 1), 0);
  const product = DEGREES.reduce((made, name) => made * Number(draft[name]), 1);
  const fits = product === ranks;
  const refused = noticeOf(notices, "distributedConfig.strategy");
  const planned = chosen?.strategy;
  return html`
    <fieldset class="train-split">
      <legend>${t("train.strategy")}</legend>
      <label class="train-check"><input type="radio" name="task-planned" checked=${draft.planned} onChange=${() => set({ planned: true })} /><span>${t("train.planned")}
        ${draft.planned && planned && html`<span class="quiet-text" data-figure="planned"> ${t("train.planned_as", { dp: planned.dp, pp: planned.pp, tp: planned.tp })}</span>`}</span></label>
      <label class="train-check"><input type="radio" name="task-planned" checked=${!draft.planned} onChange=${() => set({ planned: false })} /><span>${t("train.own_strategy")}</span></label>
      ${!draft.planned && html`
        <div class="train-degrees">
          ${DEGREES.map((name) => html`
            <label key=${name}><span>${t(`train.degree.${name}`)}</span>
              <input type="number" min="1" step="1" inputmode="numeric" data-field=${name === DEGREES[0] ? "distributedConfig.strategy" : `distributedConfig.strategy.${name}`} value=${draft[name]}
                aria-invalid=${refused || !fits ? "true" : null} aria-describedby="task-product" onInput=${(event) => set({ [name]: event.target.value })} /></label>`)}
          <p id="task-product" class=${fits ? "good" : "wrong"} role="status" data-figure="product">
            ${t(fits ? "train.product" : "train.product_wrong", { dp: draft.dataParallel || "?", pp: draft.pipelineParallel || "?", tp: draft.tensorParallel || "?", product: Number.isFinite(product) ? amount(product) : "?", ranks: amount(ranks) })}</p>
        </div>
        ${refused && html`<p class="train-wrong" role="alert">${refused.message} ${refused.hint}</p>`}`}
    </fieldset>`;
}
