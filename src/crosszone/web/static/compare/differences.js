import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { TableFrame } from "../components/table-frame.js";
import { Cell } from "./cell.js";
import { useFigures } from "./figures.js";
import { wordOf } from "./words.js";

/** Every figure of every chosen result, and how it differs from the first's. @param {{found: any, makeFirst: (id: string) => void}} given */
export function Differences({ found, makeFirst }) {
  const text = useText();
  const { t } = text;
  const { chance } = useFigures();
  /** @type {[string, (name: string) => string][]} */
  const groups = [
    ["figures", (name) => t(`compare.figure.${name}`)],
    ["parts", wordOf(text, "parts")],
    ["phases", wordOf(text, "phases")],
  ];
  return html`
    <${Card} id="compare-differences" title=${t("compare.differences")} aside=${t("compare.differences_about")}>
      <${TableFrame} label=${t("compare.differences")}>
        <thead>
          <tr>
            <td></td>
            ${found.sides.map((side, at) => html`
              <th scope="col" class="number" key=${at}>
                <span class="compare-head" title=${side.name}>${side.name}</span>
                ${at === 0
                  ? html`<span class="below">${t("compare.first")}</span>`
                  : html`<button type="button" class="link below" title=${t("compare.make_first_title", { name: side.name })} onClick=${() => makeFirst(side.id)}>${t("compare.make_first")}</button>`}
              </th>`)}
          </tr>
        </thead>
        ${groups.map(([group, word]) => html`
          <tbody key=${group} class="capital" data-group=${group}>
            <tr class="compare-group"><th scope="rowgroup" colspan=${found.sides.length + 1}>${t(`compare.${group}`)}</th></tr>
            ${found[group].map((row) => html`
              <tr key=${row.name} data-figure=${row.name}>
                <th scope="row">${word(row.name)}</th>
                ${row.cells.map((cell, at) => html`<${Cell} key=${at} name=${group === "figures" ? row.name : "step_time_s"} cell=${cell} first=${at === 0} />`)}
              </tr>`)}
            ${group === "figures" && html`
              <tr data-figure="chance">
                <th scope="row">${t("compare.chance")}</th>
                ${found.sides.map((side, at) => html`<td class="number" key=${at}>${chance(side.chance_faster)}</td>`)}
              </tr>`}
          </tbody>`)}
      <//>
    <//>`;
}
