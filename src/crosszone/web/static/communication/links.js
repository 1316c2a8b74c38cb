import { html } from "../lib/dom.js";
import { Card } from "../components/card.js";
import { More } from "../components/more.js";
import { Origin } from "../components/origin.js";
import { TableFrame } from "../components/table-frame.js";
import { useText } from "../lib/text.js";
import { kindToken, useWords } from "./words.js";

const FIGURES = ["analyse_used", "analyse_rate", "analyse_rtt", "traffic_busy", "traffic_exposed"];

/** Every direction between zones: what it carries, how full it is, and which groups cross it. */
export function Links({ traffic }) {
  const { t, label, amount } = useText();
  const { kind, gb, said } = useWords();
  const title = label("analyse_links");
  const groups = (link) =>
    traffic.groups.filter((group) => group.link === link).map((group) => said("analyse_group", { groups: amount(group.groups), axis: group.axis })).join(label("comma"));
  return html`
    <${Card} id="zone-traffic" title=${title}>
      ${!traffic.links.length && html`<p class="empty">${t("communication.no_crossing")}</p>`}
      ${traffic.links.length > 0 && html`
        <${TableFrame} label=${title}>
          <thead>
            <tr>
              <th scope="col">${label("traffic_link")}</th>
              <th scope="col" class="number">${label("traffic_gb")}</th>
              <th scope="col">${label("analyse_dominant")}</th>
              ${FIGURES.map((key) => html`<th scope="col" key=${key} class="number">${label(key)}</th>`)}
              <th scope="col" class="number">km</th>
              <th scope="col">${label("analyse_groups")}</th>
            </tr>
          </thead>
          <tbody>
            <${More} most=${12} columns=${10} items=${traffic.links} row=${(one) => html`
              <tr key=${one.link}>
                <th scope="row">${one.link}</th>
                <td class="number">${gb(one.bytes_per_step)}</td>
                <td><i class=${`swatch ${kindToken(one.dominant)}`}></i>${kind(one.dominant)}</td>
                <td class="number">${amount(one.used_gbps)}</td>
                <td class="number">${amount(one.gbps)}<${Origin} origin=${one.origin} /></td>
                <td class="number">${amount(one.rtt_ms)}</td>
                <td class="number">${amount(one.busy_s)}</td>
                <td class="number">${amount(one.exposed_s)}</td>
                <td class="number">${one.km === null ? "-" : amount(Math.round(one.km))}</td>
                <td>${groups(one.link)}</td>
              </tr>`} />
          </tbody>
        <//>`}
    <//>`;
}
