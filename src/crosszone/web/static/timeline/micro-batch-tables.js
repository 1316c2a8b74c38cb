import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { Figure } from "../components/figure.js";
import { More } from "../components/more.js";
import { TableFrame } from "../components/table-frame.js";

/** GPU usage by stage, messages by link, and every span in order. @param {{found: any, lanes: any[], kinds: string[]}} given */
export function MicroBatchTables({ found, lanes, kinds }) {
  const { t, percent, amount } = useText();
  const { time, range } = useTime();
  const head = (keys) => html`<thead><tr>${keys.map((key, at) => html`<th scope="col" class=${at ? "number" : ""}>${t(`timeline.column.${key}`)}</th>`)}</tr></thead>`;
  const { spans } = found;
  return html`
    <h3>${t("timeline.compute_lanes")}</h3>
    <${TableFrame} label=${t("timeline.compute_lanes")}>
      ${head(["lane", "usage", "own", "others", "waiting", "seconds"])}
      <tbody>
        ${found.stages.map((one, at) => html`
          <tr key=${one.lane}>
            <th scope="row">${lanes[one.lane].name}</th><td class="number" data-figure="stage-usage"><${Figure} path=${`timeline.micro_batch[${found.micro_batch}].stages[${at}].usage`}>${percent(one.usage)}<//></td>
            <td class="number">${time(one.own_s)}</td><td class="number">${time(one.other_s)}</td><td class="number">${time(one.waiting_s)}</td><td class="number">${time(one.seconds)}</td>
          </tr>`)}
      </tbody>
    <//>
    ${found.links.length > 0 && html`
      <h3>${t("timeline.link_lanes")}</h3>
      <${TableFrame} label=${t("timeline.link_lanes")}>
        ${head(["lane", "messages", "busy", "share"])}
        <tbody>
          ${found.links.map((one) => html`
            <tr key=${one.lane}><th scope="row">${lanes[one.lane].name}</th><td class="number">${amount(one.messages)}</td><td class="number">${time(one.busy_s)}</td><td class="number">${percent(one.share)}</td></tr>`)}
        </tbody>
      <//>`}
    <details class="settings">
      <summary>${t("timeline.journey", { count: amount(spans.lane.length) })}</summary>
      <${TableFrame} label=${t("timeline.journey", { count: amount(spans.lane.length) })}>
        ${head(["lane", "kind", "when", "seconds", "wait"])}
        <tbody>
          <${More} most=${40} columns=${5} items=${spans.lane} row=${(lane, at) => html`
            <tr key=${at}>
              <th scope="row">${lanes[lane].name}</th><td class="number">${t(`timeline.kind.${kinds[spans.kind[at]]}`)}</td><td class="number">${range(spans.start_s[at], spans.end_s[at])}</td>
              <td class="number">${time(spans.end_s[at] - spans.start_s[at])}</td><td class="number">${time(spans.wait_s[at])}</td>
            </tr>`} />
        </tbody>
      <//>
    </details>`;
}
