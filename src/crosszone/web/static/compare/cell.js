import { html } from "../lib/dom.js";
import { useFigures } from "./figures.js";

/** A figure with its range, and how it differs from the first's. @param {{name: string, cell: any, first: boolean}} given */
export function Cell({ name, cell, first }) {
  const { figure, range, difference, percent } = useFigures();
  if (!cell) return html`<td class="number">-</td>`;
  const change = cell.difference === null ? "" : difference(name, cell.difference);
  const between = range(name, cell);
  return html`
    <td class="number" title=${between}>
      ${figure(name, cell.value)}
      ${first
        ? between && html`<span class="below">${between}</span>`
        : cell.difference !== null && html`
            <span class=${`below compare-change ${change === "0" ? "" : cell.verdict ?? ""}`}>${change}${cell.percent !== null && change !== "0" ? ` (${percent(cell.percent)})` : ""}</span>`}
    </td>`;
}
