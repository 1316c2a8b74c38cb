import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { TableFrame } from "./table-frame.js";
import { useQuantity } from "./quantity.js";

/** Every number that goes in: its symbol, what it is, its value and where it comes from. @param {{inputs: any[], open: (figure: string) => void}} given */
export function ExplanationInputs({ inputs, open }) {
  const { t, percent } = useText();
  const quantity = useQuantity();
  return html`
    <${TableFrame} label=${t("explain.inputs")}>
      <thead>
        <tr><th scope="col">${t("explain.symbol")}</th><th scope="col">${t("explain.meaning")}</th><th scope="col" class="number">${t("explain.value")}</th><th scope="col">${t("explain.from")}</th></tr>
      </thead>
      <tbody>
        ${inputs.map(({ name, label, value, unit, origin, where, error, figure }) => html`
          <tr key=${name} data-input=${name}>
            <th scope="row"><code>${name}</code></th>
            <td class="meaning">${figure ? html`<button type="button" class="link" onClick=${() => open(figure)}>${label}</button>` : label}</td>
            <td class="number" title=${String(value)}>${quantity(value, unit)}</td>
            <td class="meaning">
              <span class=${`input-origin from-${origin}`}>${t(`explain.origin.${origin}`)}</span>
              ${where && html` <span class="quiet-text">${where}</span>`}
              ${error !== null && html` <span class="quiet-text">± ${percent(error)}</span>`}
            </td>
          </tr>`)}
      </tbody>
    <//>`;
}
