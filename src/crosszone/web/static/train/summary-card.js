import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { Card } from "../components/card.js";
import { Refusals } from "../compare/refusals.js";
import { ACROSS } from "./distributed-card.js";
import { useWords } from "./words.js";

/**
 * What the selected environments have together, what is predicted of them, and the button that starts the task.
 * @param {{asking: import("./request.js").Asking, chosen: any, predicting: boolean, entries: import("./entries.js").Entry[], frameworks: any[], notices: import("../lib/api.js").Notice[], failed: boolean, busy: boolean, create: () => void}} given
 *   chosen: what the server says of the selection; null: nothing yet; predicting: the prediction is on its way
 */
export function Summary({ asking, chosen, predicting, entries, frameworks, notices, failed, busy, create }) {
  const { t } = useText();
  const nodes = asking.fresh ? [] : asking.nodes;
  return html`
    <div class="train-summary">
      <${Card} id="train-summary" title=${t("train.summary")}>
        ${!asking.ready && html`<p class="empty">${t("train.nothing_selected")}</p>`}
        ${chosen && html`<${Together} asking=${asking} chosen=${chosen} predicting=${predicting} frameworks=${frameworks} />`}
        ${nodes.length > 0 && html`
          <ul class="train-names" aria-label=${t("train.selected_names")}>
            ${nodes.map((id) => html`<${Name} key=${id} value=${entries.find((entry) => entry.id === id)?.value} master=${asking.several && id === asking.master} />`)}
          </ul>`}
        <${Refusals} notices=${notices} failed=${failed} />
        <div class="train-create">
          <button type="submit" class="primary" disabled=${busy} onClick=${create}>${t(busy ? "train.creating" : "train.create")}</button>
        </div>
      <//>
    </div>`;
}

function Name({ value, master }) {
  const { t } = useText();
  const words = useWords();
  if (!value) return null;
  return html`<li><span>${value.name}${master && html` <span class="train-badge master">${t("train.master")}</span>`}</span> <span class="quiet-text">${words.gpus(value)}</span></li>`;
}

function Together({ asking, chosen, predicting, frameworks }) {
  const { t, amount } = useText();
  const { time, range } = useTime();
  const words = useWords();
  const { selection, step_time_s: step } = chosen;
  const told = chosen.notices.filter((notice) => notice.code !== ACROSS);
  const assumed = told.filter((notice) => notice.level !== "error");
  const title = frameworks.find((one) => one.name === asking.draft.framework)?.title;
  const kinds = selection.gpu_kinds.length ? ` (${selection.gpu_kinds.join(", ")})` : "";
  /** @type {[string, any][]} */
  const rows = [
    ...(selection.distributed ? [/** @type {[string, any]} */ (["nodes", amount(selection.nodes)])] : []),
    ["gpus", `${amount(selection.gpus)}${kinds}`],
    ["cpus", selection.cpus === null ? "-" : t("train.cores", { count: amount(selection.cpus) })],
    ["memory", words.gigabytes(selection.memory_gb)],
    ["zones", html`${amount(selection.zones.length)}<span class="below">${selection.zones.join(", ")}</span>`],
    ...(selection.distributed && title ? [/** @type {[string, any]} */ (["framework", title])] : []),
  ];
  return html`
    <p class="train-mode" data-figure="mode">${t(selection.distributed ? "train.mode_distributed" : "train.mode_single")}</p>
    <dl class="train-pairs">
      ${rows.map(([name, value]) => html`<div key=${name} data-figure=${name}><dt>${t(`train.sum.${name}`)}</dt><dd>${value}</dd></div>`)}
      ${step && html`
        <div data-figure="step"><dt>${t("train.sum.step")}</dt><dd>${time(step.expected)}<span class="below">${range(step.low, step.high)}</span></dd></div>
        <div data-figure="tokens"><dt>${t("train.sum.tokens")}</dt><dd>${amount(Number(chosen.tokens_per_s.toPrecision(4)))}</dd></div>`}
    </dl>
    ${!step && html`<p class="train-note">${t(predicting ? "train.predicting" : "train.no_prediction")}</p>`}
    <${Told} notices=${told.filter((notice) => notice.level === "error")} />
    ${assumed.length > 0 && html`
      <details class="train-assumed">
        <summary>${t("train.assumed", { count: amount(assumed.length) })}</summary>
        <${Told} notices=${assumed} />
      </details>`}`;
}

function Told({ notices }) {
  if (!notices.length) return null;
  return html`<ul class="train-notices">${notices.map((notice) => html`<li class=${notice.level}>${notice.message} <span class="hint">${notice.hint}</span></li>`)}</ul>`;
}
