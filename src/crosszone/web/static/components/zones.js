import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "./card.js";
import { TableFrame } from "./table-frame.js";

/** Zones with their node groups. */
export function Zones({ cluster }) {
  const { t, language, amount } = useText();
  const title = t("zones.heading");
  const place = (zone) => (language === "zh" && zone.place_zh ? zone.place_zh : zone.place);
  return html`
    <${Card} id="zones" title=${title} aside=${t("zones.about", { gpus: amount(cluster.gpus), nodes: amount(cluster.nodes) })}>
      <${TableFrame} label=${title}>
        <thead>
          <tr>
            <th scope="col">${t("zones.zone")}</th>
            <th scope="col">${t("zones.region")}</th>
            <th scope="col">${t("zones.nodes")}</th>
            <th scope="col" class="number">${t("zones.gpus")}</th>
            <th scope="col" class="number">${t("zones.memory")}</th>
            <th scope="col">${t("zones.link")}</th>
            <th scope="col" class="number">${t("zones.nic")}</th>
            <th scope="col" class="number">${t("zones.price")}</th>
            <th scope="col" class="number">${t("zones.carbon")}</th>
          </tr>
        </thead>
        <tbody>
          ${cluster.zones.map((zone) =>
            zone.groups.map((group, index) => {
              const span = zone.groups.length;
              const first = index === 0;
              return html`
                <tr key=${`${zone.name} ${index}`} class=${first ? "first" : "continued"}>
                  ${first && html`<th scope="row" rowspan=${span}>${zone.name}</th>`}
                  ${first && html`<td rowspan=${span}>${zone.region ?? "-"}${place(zone) && html`<span class="below">${place(zone)}</span>`}</td>`}
                  <td>${amount(group.count)} × ${group.gpus} <code>${group.gpu}</code></td>
                  ${first && html`<td class="number" rowspan=${span}>${amount(zone.gpus)}</td>`}
                  ${first && html`<td class="number" rowspan=${span}>${amount(zone.memory_gib)}</td>`}
                  <td>${group.link}<span class="below">${t("zones.domain", { count: group.domain })}</span></td>
                  <td class="number">${amount(group.nic_gbps_node)}</td>
                  <td class="number">${amount(group.usd_per_gpu_hour)}</td>
                  ${first && html`<td class="number" rowspan=${span}>${amount(zone.carbon_g_per_kwh)}</td>`}
                </tr>`;
            }),
          )}
        </tbody>
      <//>
    <//>`;
}
