import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { Card } from "../components/card.js";
import { Figure } from "../components/figure.js";
import { TableFrame } from "../components/table-frame.js";

const FIGURES = ["seconds", "share", "busy_s", "idle_s", "exposed_s"];

/** Warm-up, steady, cool-down and tail; a click on one zooms there. @param {{view: any, zoomTo: (range: [number, number]) => void}} given */
export function Phases({ view, zoomTo }) {
  const { t, percent } = useText();
  const { time } = useTime();
  const columns = ["seconds", "share", "busy", "idle", "exposed"];
  return html`
    <${Card} id="timeline-phases" title=${t("timeline.phases")} aside=${t("timeline.phases_about")}>
      <${TableFrame} label=${t("timeline.phases")}>
        <thead><tr><th scope="col">${t("timeline.column.phase")}</th>${columns.map((key) => html`<th scope="col" class="number">${t(`timeline.column.${key}`)}</th>`)}</tr></thead>
        <tbody>
          ${view.phases.map((one) => html`
            <tr key=${one.phase} data-phase=${one.phase}>
              <th scope="row">
                ${one.end_s > one.start_s
                  ? html`<button type="button" class="link" title=${t("timeline.zoom_phase")} onClick=${() => zoomTo([one.start_s, one.end_s])}>${t(`timeline.phase.${one.phase}`)}</button>`
                  : t(`timeline.phase.${one.phase}`)}
              </th>
              ${FIGURES.map((key) => html`
                <td class="number"><${Figure} path=${`timeline.phases.${one.phase}.${key}`}>${key === "share" ? percent(one.share) : time(one[key])}<//></td>`)}
            </tr>`)}
        </tbody>
        <tfoot>
          <tr><th scope="row">${t("timeline.step")}</th><td class="number"><${Figure} path="step_time_s">${time(view.step_s)}<//></td><td class="number">${percent(1)}</td>
            <td class="number">${time(view.summary.busy.seconds)}</td><td class="number"><${Figure} path="timeline.totals.idle.seconds">${time(view.summary.idle.seconds)}<//></td><td class="number">${time(view.summary.exposed.seconds)}</td></tr>
        </tfoot>
      <//>
    <//>`;
}
