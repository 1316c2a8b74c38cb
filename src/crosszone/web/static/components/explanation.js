import { html, useState } from "../lib/dom.js";
import { copyText } from "../lib/copy.js";
import { useText } from "../lib/text.js";
import { ExplanationInputs } from "./explanation-inputs.js";
import { Formula } from "./formula.js";
import { useQuantity } from "./quantity.js";
import { TableFrame } from "./table-frame.js";

/** Characters of an expression that is shown at once; longer ones are opened. */
const LONG = 700;

/** How one figure comes about, as /explain tells it. @param {{found: any, open: (figure: string) => void}} given */
export function Explanation({ found, open }) {
  const { t } = useText();
  const quantity = useQuantity();
  const more = found.inputs.some(({ figure }) => !figure || !found.lines.some((line) => line.figure === figure));
  const worked = html`<${Worked} found=${found} key=${found.figure} />`;
  return html`
    <p class="explained-value"><data value=${found.value} title=${String(found.value)}>${quantity(found.value, found.unit)}</data>
      ${found.low !== null && html`<span class="quiet-text">${t("explain.range", { low: quantity(found.low, found.unit), high: quantity(found.high, found.unit) })}</span>`}
    </p>
    ${found.notes.map((note) => html`<p class="explained-note">${note}</p>`)}
    ${found.lines.length > 0 && html`<${Lines} lines=${found.lines} open=${open} />`}
    <h3>${t("explain.worked")}</h3>
    ${found.worked.length > LONG ? html`<details><summary>${t("explain.long", { count: found.inputs.length })}</summary>${worked}</details>` : worked}
    ${more && html`<h3>${t("explain.inputs")}</h3><${ExplanationInputs} inputs=${found.inputs} open=${open} />`}
    <h3>${t("explain.formula")}</h3>
    <${Formula} id=${found.formula} title=${found.title} text=${found.text} />`;
}

/** The expression with names and with numbers, which can be taken along. */
function Worked({ found }) {
  const { t } = useText();
  const quantity = useQuantity();
  const [copied, setCopied] = useState(false);
  const text = `${found.worked} = ${found.result}`;
  return html`
    <div class="worked-out">
      ${found.symbols !== found.worked && html`<code class="expression" aria-label=${t("explain.symbols")}>${found.symbols}</code>`}
      <code class="expression" data-worked>${found.worked}</code>
      <p class="worked-result"><code>= ${found.result}</code> <span class="quiet-text">${found.unit && quantity(found.result, found.unit)}</span>
        <button type="button" class="quiet small" onClick=${() => copyText(text).then(setCopied)}>${t(copied ? "explain.copied" : "explain.copy")}</button>
      </p>
    </div>`;
}

/** Terms of a long sum. */
function Lines({ lines, open }) {
  const { t } = useText();
  const quantity = useQuantity();
  return html`
    <${TableFrame} label=${t("explain.lines")}>
      <thead><tr><th scope="col">${t("explain.lines")}</th><th scope="col" class="number">${t("explain.value")}</th></tr></thead>
      <tbody>
        ${lines.map(({ label, value, unit, figure, worked }, at) => html`
          <tr key=${at}>
            <th scope="row" class="meaning">${figure ? html`<button type="button" class="link" onClick=${() => open(figure)}>${label}</button>` : label}</th>
            <td class="number" title=${`${worked} = ${value}`}>${quantity(value, unit)}</td>
          </tr>`)}
      </tbody>
    <//>`;
}
