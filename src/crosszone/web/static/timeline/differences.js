import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { Card } from "../components/card.js";
import { TableFrame } from "../components/table-frame.js";

/** The predicted step against the measured one, by phase and by kind. @param {{difference: any}} given */
export function Differences({ difference }) {
  const { t } = useText();
  const phases = difference.phases.map((row) => [t(`timeline.phase.${row.part}`), row]);
  const kinds = difference.kinds.map((row) => [t(`timeline.kind.${row.part}`), row]);
  return html`
    <${Card} id="timeline-difference" title=${t("timeline.difference.heading")} aside=${t("timeline.difference.about")}>
      <div class="timeline-pair">
        <${Rows} title=${t("timeline.difference.phases")} rows=${phases} foot=${[t("timeline.step"), difference.step]} />
        <${Rows} title=${t("timeline.difference.kinds")} rows=${kinds} />
      </div>
    <//>`;
}

function Rows({ title, rows, foot }) {
  const { t, language } = useText();
  const { time } = useTime();
  const signed = new Intl.NumberFormat(language, { maximumFractionDigits: 1, minimumFractionDigits: 1, signDisplay: "exceptZero" });
  const cells = ([name, row]) => html`
    <tr key=${row.part} data-part=${row.part}>
      <th scope="row">${name}</th><td class="number">${time(row.predicted_s)}</td><td class="number">${time(row.measured_s)}</td>
      <td class="number" data-figure="difference">${row.difference_pct === null ? "-" : `${signed.format(row.difference_pct)} %`}</td>
    </tr>`;
  return html`
    <${TableFrame} label=${title}>
      <thead><tr><th scope="col">${title}</th>${["predicted", "measured", "difference"].map((key) => html`<th scope="col" class="number">${t(`timeline.difference.${key}`)}</th>`)}</tr></thead>
      <tbody>${rows.map(cells)}</tbody>
      ${foot && html`<tfoot>${cells(foot)}</tfoot>`}
    <//>`;
}
