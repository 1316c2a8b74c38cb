import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "./card.js";
import { More } from "./more.js";
import { Origin } from "./origin.js";
import { TableFrame } from "./table-frame.js";

/** The path between each two zones, with the origin of every figure. */
export function Links({ links }) {
  const { t } = useText();
  if (!links.length) return null;
  const title = t("links.heading");
  return html`
    <${Card} id="links" title=${title} aside=${t("links.about")}>
      <${TableFrame} label=${title}>
        <thead>
          <tr>
            <th scope="col">${t("links.between")}</th>
            <th scope="col" colspan="2">${t("links.gbps")}</th>
            <th scope="col" colspan="2">${t("links.rtt")}</th>
            <th scope="col" class="number">${t("links.band")}</th>
            <th scope="col" class="number">${t("links.floor")}</th>
            <th scope="col" class="number">${t("links.km")}</th>
            <th scope="col" colspan="2">${t("links.usd")}</th>
          </tr>
        </thead>
        <tbody><${More} most=${40} items=${links} columns=${10} row=${(link) => html`<${Row} key=${link.between.join(" ")} link=${link} />`} /></tbody>
      <//>
    <//>`;
}

function Row({ link }) {
  const { amount } = useText();
  const { rtt_ms: rtt, origins } = link;
  const band = rtt.low === rtt.high ? "" : `${amount(rtt.low)} – ${amount(rtt.high)}`;
  return html`
    <tr>
      <th scope="row">${link.between[0]} – ${link.between[1]}</th>
      <td class="number with-origin">${twoWays(link.gbps, link.gbps_back, amount)}</td>
      <td class="of-figure"><${Origin} origin=${origins.gbps} source=${link.source} /></td>
      <td class="number with-origin">${amount(rtt.expected)}</td>
      <td class="of-figure"><${Origin} origin=${origins.rtt_ms} source=${link.source} /></td>
      <td class="number">${band}</td>
      <td class=${`number ${link.floor_ms !== null && rtt.expected < link.floor_ms ? "wrong" : ""}`}>${amount(link.floor_ms)}</td>
      <td class="number">${link.km === null ? "-" : amount(Math.round(link.km))}</td>
      <td class="number with-origin">${twoWays(link.usd_per_gb, link.usd_per_gb_back, amount)}</td>
      <td class="of-figure"><${Origin} origin=${origins.usd_per_gb} /></td>
    </tr>`;
}

const twoWays = (there, back, amount) => (there === back ? amount(there) : `${amount(there)} / ${amount(back)}`);
