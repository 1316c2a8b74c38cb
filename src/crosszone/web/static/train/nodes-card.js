import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { TableFrame } from "../components/table-frame.js";
import { Refusals } from "../compare/refusals.js";

const CHECKED = ["queued", "running", "stopping", "succeeded"];

/** What the checks before the start found, and where each rank runs. @param {{task: any}} given */
export function Nodes({ task }) {
  const { t } = useText();
  const passed = CHECKED.includes(task.state) || task.token;
  return html`
    <${Card} id="train-checks" title=${t("train.checks")}>
      ${task.checks.length > 0
        ? html`<${Refusals} notices=${task.checks} />`
        : html`<p class="empty">${t(passed ? "train.checks_passed" : "train.checks_open")}</p>`}
      ${task.nodes.length > 0 && html`
        <${TableFrame} label=${t("train.nodes")}>
          <thead><tr>${["number", "environment", "zone", "address", "ranks", "state"].map((name) => html`<th scope="col" key=${name}>${t(`train.node.${name}`)}</th>`)}</tr></thead>
          <tbody>
            ${task.nodes.map((node) => html`
              <tr key=${node.number} data-node=${node.number}>
                <th scope="row">${node.number}${node.master && html` <span class="train-badge master">${t("train.master")}</span>`}</th>
                <td>${node.name}</td><td>${node.zone ?? "-"}</td><td>${node.address ?? "-"}</td><td>${node.ranks.join(", ")}</td>
                <td>${t(`train.node_state.${node.state}`)}${node.code !== null && html` <span class="quiet-text">${t("train.exit", { code: node.code })}</span>`}</td>
              </tr>`)}
          </tbody>
        <//>`}
    <//>`;
}
