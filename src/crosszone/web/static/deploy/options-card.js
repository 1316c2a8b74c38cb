import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { More } from "../components/more.js";
import { TableFrame } from "../components/table-frame.js";

const FIRST = 14;

/** What each option does. @param {{options: {where: string, name: string, value: any, why: string}[]}} given */
export function Options({ options }) {
  const { t } = useText();
  return html`
    <${Card} id="deploy-options" title=${t("deploy.options")} aside=${t("deploy.options_about")}>
      <${TableFrame} label=${t("deploy.options")}>
        <thead>
          <tr>${["option", "value", "where", "why"].map((key) => html`<th scope="col" key=${key} class=${key === "where" ? "deploy-wide" : ""}>${t(`deploy.column.${key}`)}</th>`)}</tr>
        </thead>
        <tbody>
          <${More} items=${options} most=${FIRST} columns=${4} row=${(one) => html`
            <tr key=${`${one.where} ${one.name}`}>
              <th scope="row" class="deploy-option"><code>${one.name}</code></th>
              <td><code class="deploy-value">${valueText(one)}</code></td>
              <td class="quiet-text deploy-wide">${t(`deploy.where.${one.where}`)}</td>
              <td class="words">${one.why}</td>
            </tr>`} />
        </tbody>
      <//>
    <//>`;
}

/** A flag that stands alone has no value to show. */
const valueText = ({ where, value }) => (where === "flag" && value === true ? "" : typeof value === "string" ? value : JSON.stringify(value));
