import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { kindToken } from "../charts/map.js";
import { Figure } from "../components/figure.js";
import { More } from "../components/more.js";
import { Origin } from "../components/origin.js";
import { TableFrame } from "../components/table-frame.js";
import { Value } from "./value.js";

/** What a step sends over each link, a row for each direction. @param {{pairs: import("./map-data.js").Pair[]}} given */
export function LinkTraffic({ pairs }) {
  const { t, label, amount } = useText();
  if (!pairs.length) return html`<p class="empty">${t("plan.map.one_zone")}</p>`;
  const rows = pairs.flatMap(({ link, there, back, a, b, known }) =>
    there || back
      ? [[there, `${a} > ${b}`], [back, `${b} > ${a}`]].filter(([line]) => line).map(([line, name]) => ({ line, name, link }))
      : [{ line: null, name: `${a} – ${b}`, link, known }],
  );
  return html`
    <${TableFrame} label=${t("plan.map.traffic")}>
      <thead>
        <tr>
          <th scope="col">${t("plan.map.link")}</th>
          <th scope="col">${t("plan.map.kind")}</th>
          <th scope="col" class="number">${t("plan.map.gb")}</th>
          <th scope="col" class="number">${t("plan.map.exposed")}</th>
          <th scope="col" class="number">${t("plan.map.rtt")}</th>
          <th scope="col" colspan="2">${t("plan.map.gbps")}</th>
          <th scope="col" class="number">km</th>
        </tr>
      </thead>
      <tbody>
        <${More} most=${8} items=${rows} columns=${8} row=${({ line, name, link, known }) => html`
          <tr key=${name} data-link=${name} class=${line ? "" : "unused"}>
            <th scope="row">${name}</th>
            <td>${line ? html`<span class=${`swatch ${kindToken(line.dominant)}`}></span>${label(`kind_${line.dominant}`)}` : known ? t("plan.map.unused") : "-"}</td>
            <td class="number">${line ? html`<${Figure} path=${`traffic.links.${name}.bytes_per_step`}><${Value} of=${line.bytes_per_step} shown=${amount(line.bytes_per_step / 1e9)} /><//>` : "-"}</td>
            <td class="number">${line ? html`<${Figure} path=${`traffic.links.${name}.exposed_s`}><${Value} of=${line.exposed_s} /><//>` : "-"}</td>
            <td class="number">${amount(link.rtt_ms.expected)}</td>
            <td class="number with-origin">${amount(line?.gbps ?? link.gbps)}</td>
            <td class="of-figure"><${Origin} origin=${link.origins.gbps} /></td>
            <td class="number">${link.km === null ? "-" : amount(Math.round(link.km))}</td>
          </tr>`} />
      </tbody>
    <//>`;
}
