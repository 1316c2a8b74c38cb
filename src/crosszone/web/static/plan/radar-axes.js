import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Formula } from "../components/formula.js";
import { useQuantity } from "../components/quantity.js";
import { RADAR_COLOURS } from "../charts/radar.js";

/** What each axis is: its formula in a line, every way's value with the number behind it; opens to the whole text. @param {{radar: any}} given */
export function RadarAxes({ radar }) {
  const { t, percent } = useText();
  const quantity = useQuantity();
  return html`
    <ul class="legend radar-legend" aria-hidden="true">
      ${radar.entries.map(({ name, label }, at) => html`<li key=${name}><span class=${`swatch radar-${RADAR_COLOURS[at % RADAR_COLOURS.length]}`}></span>${label}</li>`)}
    </ul>
    <ul class="radar-axes">
      ${radar.axes.map((axis) => html`
        <li key=${axis.id} data-axis=${axis.id}>
          <details>
            <summary><strong>${axis.label}</strong> <span class="quiet-text">[${axis.formula}] ${axis.explain}</span></summary>
            <dl class="radar-values">
              ${radar.entries.map(({ name, label, values, raw }) => html`
                <div key=${name}><dt>${label}</dt><dd>${values[axis.id] === null ? t("plan.radar.unknown") : html`${percent(values[axis.id])} <span class="quiet-text">${t(`plan.radar.behind.${axis.id}`, { value: quantity(raw[axis.id], axis.unit) })}</span>`}</dd></div>`)}
            </dl>
            <${Formula} id=${axis.formula} title=${axis.title} text=${axis.text} />
          </details>
        </li>`)}
    </ul>`;
}
