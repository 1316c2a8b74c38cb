import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { TableFrame } from "./table-frame.js";

/** Parameters by part as a table with bars; the server gives the parts and their sum. */
export function Bars({ label, counted }) {
  const { t, label: word, amount, percent } = useText();
  const { total, active } = counted;
  const parts = Object.entries(counted.parts).filter(([, count]) => count > 0);
  return html`
    <${TableFrame} label=${label}>
      <thead>
        <tr>
          <th scope="col">${t("parts.part")}</th>
          <th scope="col" class="bar-column"><span class="visually-hidden">${t("parts.bar")}</span></th>
          <th scope="col" class="number">${t("parts.count")}</th>
          <th scope="col" class="number">${t("parts.share")}</th>
        </tr>
      </thead>
      <tbody class="capital">
        ${parts.map(
          ([part, count]) => html`
            <tr key=${part}>
              <th scope="row">${word(`part_${part}`)}</th>
              <td class="bar-column"><span class="bar-fill" style=${{ width: `${(100 * count) / total}%` }}></span></td>
              <td class="number">${amount(count)}</td>
              <td class="number">${percent(count / total)}</td>
            </tr>`,
        )}
      </tbody>
      <tfoot class="capital">
        <tr><th scope="row">${word("total")}</th><td class="bar-column"></td><td class="number" data-figure="sum">${amount(total)}</td><td class="number">${percent(1)}</td></tr>
        ${active !== total && html`<tr><th scope="row">${word("active")}</th><td class="bar-column"></td><td class="number">${amount(active)}</td><td class="number">${percent(active / total)}</td></tr>`}
      </tfoot>
    <//>`;
}
