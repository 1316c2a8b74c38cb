import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { Card } from "../components/card.js";
import { Facts } from "../components/facts.js";
import { More } from "../components/more.js";
import { TableFrame } from "../components/table-frame.js";
import { useQuantity } from "../components/quantity.js";
import { Remarks } from "./remarks.js";
import { usePercent } from "./words.js";

/** What timed collectives say of links, and what changes in the scenario. @param {{found: any, put: (text: string) => void}} given */
export function LinksFound({ found, put }) {
  const { t, amount } = useText();
  const left = Object.entries(found.left_out).map(([flag, count]) => `${flag} ${amount(count)}`).join(", ") || "0";
  return html`
    <${Card} id="calibrate-found" title=${t("calibrate.found.heading", { name: found.name })}>
      <${Facts} facts=${[[t("calibrate.fact.rows"), amount(found.rows)], [t("calibrate.fact.left_out"), left], [t("calibrate.fact.topologies"), amount(found.fits.length)]]} />
      <${Remarks} notices=${found.notices} />
      <${Fits} fits=${found.fits} />
      ${found.together.length > 0 && html`<${Together} rows=${found.together} />`}
      ${found.changes.length > 0 && html`<${Changes} rows=${found.changes} />`}
      <div class="bar">
        ${found.text
          ? html`<button type="button" class="primary" onClick=${() => put(found.text)}>${t("calibrate.links.put")}</button>`
          : html`<p class="quiet-text">${t("calibrate.links.nothing")}</p>`}
      </div>
    <//>`;
}

const where = (row) => [row.cluster, row.op, row.scope, row.zone, row.size_class].filter(Boolean).join(" · ");

function Fits({ fits }) {
  const { t, amount } = useText();
  const { time } = useTime();
  const { pct } = usePercent();
  const quantity = useQuantity();
  return html`
    <h3 class="calibrate-sub">${t("calibrate.links.fits")}</h3>
    <${TableFrame} label=${t("calibrate.links.fits")}>
      <thead><tr><th scope="col">${t("calibrate.column.what")}</th><th scope="col" class="number">${t("calibrate.column.ranks")}</th><th scope="col" class="number">${t("calibrate.column.rows")}</th>
        <th scope="col" class="number">${t("calibrate.column.latency")}</th><th scope="col" class="number">${t("calibrate.column.rate")}</th>
        <th scope="col" class="number">${t("calibrate.column.mean_error")}</th><th scope="col" class="number">${t("calibrate.error.unseen_pct")}</th></tr></thead>
      <tbody><${More} most=${20} items=${fits} columns=${7} row=${(row, at) => html`
        <tr key=${at} data-op=${row.op}>
          <th scope="row">${where(row)}</th><td class="number">${t("calibrate.links.ranks", { nodes: amount(row.nodes), gpus: amount(row.gpus_per_node), groups: amount(row.groups) })}</td>
          <td class="number">${amount(row.rows)}</td><td class="number">${row.latency_known ? time(row.latency_s) : "-"}</td>
          <td class="number">${row.rate_known ? quantity(row.bytes_per_s, "bytes/s") : "-"}</td>
          <td class="number">${pct(row.error_pct)}</td><td class="number">${pct(row.unseen_pct)}</td>
        </tr>`} /></tbody>
    <//>`;
}

function Together({ rows }) {
  const { t, amount } = useText();
  return html`
    <h3 class="calibrate-sub">${t("calibrate.links.together")}</h3>
    <${TableFrame} label=${t("calibrate.links.together")}>
      <thead><tr><th scope="col">${t("calibrate.column.what")}</th><th scope="col" class="number">${t("calibrate.column.groups")}</th><th scope="col" class="number">${t("calibrate.column.slower")}</th></tr></thead>
      <tbody>${rows.map((row, at) => html`<tr key=${at}><th scope="row">${where(row)}</th><td class="number">${amount(row.groups)}</td><td class="number">×${amount(Number(row.factor.toPrecision(3)))}</td></tr>`)}</tbody>
    <//>`;
}

function Changes({ rows }) {
  const { t, shown } = useText();
  return html`
    <h3 class="calibrate-sub">${t("calibrate.links.changes")}</h3>
    <${TableFrame} label=${t("calibrate.links.changes")}>
      <thead><tr><th scope="col">${t("calibrate.column.field")}</th><th scope="col" class="number">${t("calibrate.found.before")}</th><th scope="col" class="number">${t("calibrate.found.after")}</th><th scope="col">${t("calibrate.column.from")}</th></tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.field} data-change=${row.field}><th scope="row"><code>${row.field}</code></th><td class="number">${shown(row.before ?? "-")}</td><td class="number">${shown(row.after)} ${row.unit}</td><td>${row.from_op}</td></tr>`)}</tbody>
    <//>`;
}
