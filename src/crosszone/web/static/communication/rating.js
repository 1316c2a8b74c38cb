import { html, useMemo } from "../lib/dom.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { TableFrame } from "../components/table-frame.js";
import { ratingOption } from "../charts/rating.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { Told } from "./long.js";

/** Step, speed and days of half of all runs and of one in twenty, what widens them, and what limits each link. */
export function Rating({ rating }) {
  const { t, label, amount } = useText();
  const tokens = useTokens();
  const present = rating.doubts.filter((one) => one.present);
  const option = useMemo(() => ratingOption(present.map((one) => ({ name: label(`doubt_${one.doubt}`), seconds: one.widens_s })), tokens), [rating, label, tokens]);
  const rows = [["what_if_step", rating.step_s], ["what_if_speed", rating.tokens_per_s], ...(rating.days ? [["what_if_days", rating.days]] : [])];
  const title = label("rating_title");
  return html`
    <${Card} id="rating" title=${title}>
      <p class="note-line">${rating.told.message} <span class="hint">${rating.told.hint}</span></p>
      <div class="pair">
        <${TableFrame} label=${title}>
          <thead><tr><th scope="col">${label("figure")}</th><th scope="col" class="number">${label("rating_p50")}</th><th scope="col" class="number">${label("rating_p95")}</th></tr></thead>
          <tbody>
            ${rows.map(([key, found]) => html`
              <tr key=${key}><th scope="row">${label(key)}</th><td class="number"><data value=${found.p50}>${amount(found.p50)}</data></td><td class="number"><data value=${found.p95}>${amount(found.p95)}</data></td></tr>`)}
          </tbody>
        <//>
        <div>
          <h3>${label("rating_doubts")}, s</h3>
          ${present.length
            ? html`<${Chart} name="rating" option=${option} height=${34 + 28 * present.length} label=${`${title}: ${label("rating_doubts")}`} table=${{ columns: [label("rating_doubts"), "s"], rows: present.map((one) => [label(`doubt_${one.doubt}`), one.widens_s]) }} />`
            : html`<p class="empty">${t("communication.certain")}</p>`}
        </div>
      </div>
      ${rating.links.length > 0 && html`<${Flows} links=${rating.links} />`}
      <${Told} notices=${rating.notes} />
    <//>`;
}

/** What limits each link: connections, the link, an uplink, network cards. */
function Flows({ links }) {
  const { t, label, amount } = useText();
  const title = label("rating_links");
  return html`
    <h3>${title}</h3>
    <${TableFrame} label=${title}>
      <thead>
        <tr>
          <th scope="col">${label("traffic_link")}</th><th scope="col">${label("traffic_kind")}</th>
          ${["rating_flows", "rating_flow", "rating_all_flows", "analyse_rate", "rating_carries"].map((key) => html`<th scope="col" key=${key} class="number">${label(key)}</th>`)}
          <th scope="col">${label("rating_limit")}</th><th scope="col" class="number">${t("communication.flows_to_fill")}</th>
        </tr>
      </thead>
      <tbody>
        ${links.map((one) => html`
          <tr key=${`${one.link} ${one.kinds}`}>
            <th scope="row">${one.link}</th><td>${one.kinds.map((kind) => label(`kind_${kind}`)).join(label("comma"))}</td>
            ${[one.flows, one.flow_gbps, one.flows_gbps, one.link_gbps, one.carries_gbps].map((value) => html`<td class="number">${amount(value)}</td>`)}
            <td>${label(`limit_${one.limited_by}`)}</td><td class="number">${amount(one.flows_to_fill)}</td>
          </tr>`)}
      </tbody>
    <//>`;
}
