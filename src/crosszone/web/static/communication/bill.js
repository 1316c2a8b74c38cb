import { html } from "../lib/dom.js";
import { Card } from "../components/card.js";
import { Facts } from "../components/facts.js";
import { Figure } from "../components/figure.js";
import { Origin } from "../components/origin.js";
import { TableFrame } from "../components/table-frame.js";
import { useText } from "../lib/text.js";
import { Told } from "./long.js";
import { useWords } from "./words.js";

/** $, kWh and CO2: totals, GPUs and energy by zone, egress by link. */
export function Bill({ bill }) {
  const { t, label } = useText();
  const { large } = useWords();
  const facts = [
    ["per_hour", bill.usd_per_hour, "$"], ["per_step", bill.usd_per_step, "$"], ["per_million", bill.usd_per_million_tokens, "$"], ["run", bill.usd?.expected, "$", "run.usd.expected"],
    ["gpu_hours", bill.gpu_hours?.expected, "", "run.gpu_hours.expected"], ["kwh", bill.kwh?.expected, "", "run.kwh.expected"], ["co2", bill.co2_kg?.expected, "", "run.co2_kg.expected"],
  ]
    .filter(([, value]) => value !== null && value !== undefined)
    .map(([key, value, unit, path]) => {
      const words = html`<data value=${value}>${unit}${large(value)}</data>`;
      return [t(`communication.bill.${key}`), path ? html`<${Figure} path=${path}>${words}<//>` : words];
    });
  return html`
    <${Card} id="bill" title=${label("bill_title")}>
      ${facts.length ? html`<${Facts} facts=${facts} />` : html`<p class="empty">${label("cost_unknown")}</p>`}
      <${Zones} bill=${bill} />
      ${bill.egress.length > 0 && html`<${Egress} bill=${bill} />`}
      <${Told} notices=${bill.warnings} />
    <//>`;
}

function Zones({ bill }) {
  const { label, amount } = useText();
  const { large } = useWords();
  const firsts = new Set(bill.gpus.filter((one, at) => bill.gpus.findIndex((other) => other.zone === one.zone) === at));
  return html`
    <${TableFrame} label=${label("bill_title")}>
      <thead>
        <tr>
          <th scope="col">${label("zone")}</th><th scope="col">${label("gpu")}</th>
          ${["gpus", "bill_price", "bill_per_hour", "bill_usd", "bill_kwh", "bill_co2"].map((key) => html`<th scope="col" key=${key} class="number">${label(key)}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${bill.gpus.map((one) => {
          const energy = firsts.has(one) ? bill.energy.find(({ zone }) => zone === one.zone) : null;
          return html`
            <tr key=${`${one.zone} ${one.group}`}>
              <th scope="row">${one.zone}</th><td><code>${one.gpu}</code></td><td class="number">${amount(one.gpus)}</td>
              <td class="number">${large(one.usd_per_gpu_hour)}</td><td class="number">${large(one.usd_per_hour)}</td><td class="number">${large(one.usd)}</td>
              <td class="number">${large(energy?.kwh)}</td><td class="number">${large(energy?.co2_kg)}</td>
            </tr>`;
        })}
      </tbody>
    <//>`;
}

function Egress({ bill }) {
  const { label } = useText();
  const { gb, large } = useWords();
  const title = label("bill_egress");
  return html`
    <h3>${title}</h3>
    <${TableFrame} label=${title}>
      <thead>
        <tr><th scope="col">${label("traffic_link")}</th>${["traffic_gb", "bill_per_gb", "bill_per_step", "bill_usd"].map((key) => html`<th scope="col" key=${key} class="number">${label(key)}</th>`)}</tr>
      </thead>
      <tbody>
        ${bill.egress.map((one) => html`
          <tr key=${one.link}>
            <th scope="row">${one.link}</th><td class="number">${gb(one.bytes_per_step)}</td>
            <td class="number">${large(one.usd_per_gb)}<${Origin} origin=${one.origin} /></td><td class="number">${large(one.usd_per_step)}</td><td class="number">${large(one.usd)}</td>
          </tr>`)}
      </tbody>
    <//>`;
}
