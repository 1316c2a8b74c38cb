import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { noticeOf } from "./field.js";
import { NO_NODES } from "./request.js";

const SCHEDULERS = ["slurm", "kubernetes", "ray"];
const COLUMNS = ["zone", "gpu", "nodes", "gpus_per_node"];

/** Nodes that a scheduler is asked for. @param {{asking: import("./request.js").Asking, entries: import("./entries.js").Entry[], notices: import("../lib/api.js").Notice[]}} given */
export function Allocation({ asking, entries, notices }) {
  const { t } = useText();
  const { draft, set } = asking;
  const sources = entries.map((entry) => entry.value).filter((value) => SCHEDULERS.includes(value.runner));
  const rows = draft.allocation;
  const change = (at, changes) => set({ allocation: rows.map((row, place) => (place === at ? { ...row, ...changes } : row)) });
  const zones = [...new Set(sources.map((value) => value.zone))];
  const gpus = (zone) => [...new Set(sources.filter((value) => value.zone === zone && value.gpu).map((value) => value.gpu))];
  const refused = noticeOf(notices, "allocation");
  const chooser = (at, name, choices, none) => html`
    <select data-field=${`allocation[${at}].${name}`} value=${rows[at][name]} onChange=${(event) => change(at, { [name]: event.target.value })}>
      <option value="" selected=${!rows[at][name]}>${none}</option>
      ${choices.map((one) => html`<option key=${one} value=${one} selected=${one === rows[at][name]}>${one}</option>`)}
    </select>`;
  const number = (at, name, none) => html`
    <input data-field=${`allocation[${at}].${name}`} inputmode="numeric" maxlength="6" placeholder=${none} value=${rows[at][name]} onInput=${(event) => change(at, { [name]: event.target.value })} />`;
  return html`
    <${Card} id="train-allocation" title=${t("train.allocation")} aside=${t("train.allocation_about")}>
      <div data-field="allocation" tabindex="-1" role="group" aria-label=${t("train.allocation")} class="train-choice">
        ${refused && html`<p class="train-wrong" role="alert">${refused.message} ${refused.hint}</p>`}
        ${!sources.length && html`<p class="empty">${t("train.no_scheduler")}</p>`}
        ${rows.map((_, at) => html`
          <div class="train-wanted" key=${at}>
            ${COLUMNS.map((name) => html`
              <label key=${name}><span>${t(`train.wanted.${name}`)}</span>
                ${name === "zone" ? chooser(at, name, zones, t("train.choose")) : name === "gpu" ? chooser(at, name, gpus(rows[at].zone), t("train.any")) : number(at, name, name === "nodes" ? "1" : t("train.any"))}
              </label>`)}
            ${rows.length > 1 && html`<button type="button" class="quiet" onClick=${() => set({ allocation: rows.filter((__, place) => place !== at) })}>${t("train.less")}</button>`}
          </div>`)}
        <div class="bar"><button type="button" onClick=${() => set({ allocation: [...rows, NO_NODES] })}>${t("train.more_nodes")}</button></div>
      </div>
    <//>`;
}
