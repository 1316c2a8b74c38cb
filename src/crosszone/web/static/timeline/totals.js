import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { useTokens } from "../lib/tokens.js";
import { KIND_TOKENS } from "../charts/gantt-rows.js";
import { Card } from "../components/card.js";
import { Figure } from "../components/figure.js";
import { TableFrame } from "../components/table-frame.js";

/** What the average stage does in the step: the parts add up to it. @param {{view: any}} given */
export function Totals({ view }) {
  const { t, percent } = useText();
  const { time } = useTime();
  const tokens = useTokens();
  return html`
    <${Card} id="timeline-totals" title=${t("timeline.totals")} aside=${t("timeline.totals_about")}>
      <${TableFrame} label=${t("timeline.totals")}>
        <thead><tr><th scope="col">${t("timeline.column.kind")}</th><th scope="col" class="bar-column"><span class="visually-hidden">${t("timeline.column.share")}</span></th>
          <th scope="col" class="number">${t("timeline.column.seconds")}</th><th scope="col" class="number">${t("timeline.column.share")}</th></tr></thead>
        <tbody>
          ${view.totals.map((one) => html`
            <tr key=${one.kind} data-kind=${one.kind}>
              <th scope="row">${t(`timeline.kind.${one.kind}`)}</th>
              <td class="bar-column"><span class="bar-fill" style=${{ width: `${100 * one.share}%`, background: tokens[KIND_TOKENS[one.kind]] }}></span></td>
              <td class="number"><${Figure} path=${`timeline.totals.${one.kind}.seconds`}>${time(one.seconds)}<//></td>
              <td class="number"><${Figure} path=${`timeline.totals.${one.kind}.share`}>${percent(one.share)}<//></td>
            </tr>`)}
        </tbody>
        <tfoot><tr><th scope="row">${t("timeline.step")}</th><td class="bar-column"></td><td class="number"><${Figure} path="step_time_s">${time(view.step_s)}<//></td><td class="number">${percent(1)}</td></tr></tfoot>
      <//>
    <//>`;
}
