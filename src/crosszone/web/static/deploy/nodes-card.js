import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { More } from "../components/more.js";
import { TableFrame } from "../components/table-frame.js";

const FIRST = 8;

/** What each node runs. @param {{bundle: any, show: (path: string) => void}} given show: open a file */
export function Nodes({ bundle, show }) {
  const { t } = useText();
  return html`
    <${Card} id="deploy-nodes" title=${t("deploy.nodes")} aside=${t("deploy.nodes_about")}>
      <${TableFrame} label=${t("deploy.nodes")}>
        <thead>
          <tr>${["script", "node", "zone", "address", "ranks", "command"].map((key) => html`<th scope="col" key=${key}>${t(`deploy.column.${key}`)}</th>`)}</tr>
        </thead>
        <tbody>
          <${More} items=${bundle.nodes} most=${FIRST} columns=${6} row=${(node) => html`
            <tr key=${node.number} data-node=${node.number}>
              <th scope="row"><button type="button" class="link" onClick=${() => show(node.script)}><code>${node.script}</code></button></th>
              <td>${node.name}</td>
              <td>${node.zone}</td>
              <td>${node.address ?? html`<span class="quiet-text">${t("deploy.found_later")}</span>`}${node.interface && html`<span class="below">${node.interface}</span>`}</td>
              <td>${node.ranks.join(", ")}</td>
              <td>${node.commands.map((command) => html`<code key=${command} class="deploy-command">${command}</code>`)}</td>
            </tr>`} />
        </tbody>
      <//>
    <//>`;
}
