import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { TableFrame } from "../components/table-frame.js";
import { usePercent } from "../calibrate/words.js";

const COLUMNS = ["rows", "mean_pct", "median_pct", "bias_pct", "inside_pct", "width_pct"];

/** The figure that counts most as tiles, and every manner of entering runs beside it. @param {{summary: any}} given */
export function ContactCard({ summary }) {
  const { t, amount } = useText();
  const { pct, signed, tick } = usePercent();
  const [first] = summary.readings;
  const { total } = first;
  const shown = (key, value) => (key === "rows" ? amount(value) : key === "bias_pct" ? signed(value) : pct(value));
  const tiles = [
    ["mean_pct", t("accuracy.mean_below", { share: pct(total.within_10_pct) })],
    ["median_pct", t("accuracy.median_below", { bias: signed(total.bias_pct) })],
    ["inside_pct", t("accuracy.inside_below", { promised: tick(summary.range_pct) })],
    ["width_pct", t("accuracy.width_below")],
  ];
  return html`
    <${Card} id="accuracy-contact" title=${t("accuracy.contact.heading")} aside=${t("accuracy.contact.about", { rows: amount(total.rows) })}>
      <dl class="strip" data-reading=${first.kind}>
        ${tiles.map(([key, below]) => html`
          <div class="tile" key=${key}>
            <dt>${t(`accuracy.column.${key}`)}</dt>
            <dd data-figure=${key}>${pct(total[key])}</dd>
            <dd class="below">${below}</dd>
          </div>`)}
      </dl>
      <${TableFrame} label=${t("accuracy.contact.heading")}>
        <thead><tr><th scope="col">${t("accuracy.column.reading")}</th>${COLUMNS.map((key) => html`<th scope="col" class="number" key=${key}>${t(`accuracy.column.${key}`)}</th>`)}</tr></thead>
        <tbody>${summary.readings.map((reading) => html`
          <tr key=${reading.kind} data-reading=${reading.kind}>
            <th scope="row" class="words">${t(`accuracy.reading.${reading.kind}`)}<span class="below">${t(`accuracy.reading_about.${reading.kind}`)}</span></th>
            ${COLUMNS.map((key) => html`<td class="number" key=${key}>${shown(key, reading.total[key])}</td>`)}
          </tr>`)}</tbody>
      <//>
      <p class="table-note">${t("accuracy.contact.note")}</p>
    <//>`;
}
