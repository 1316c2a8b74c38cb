import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { TableFrame } from "../components/table-frame.js";

const isTable = (value) => value && typeof value === "object" && !Array.isArray(value) && Object.values(value).every((row) => row && typeof row === "object" && !Array.isArray(row));
const isRows = (value) => Array.isArray(value) && value.length > 0 && value.every((row) => row && typeof row === "object" && !Array.isArray(row));

/** Errors as a fit tells them: tables stay tables, single numbers stand in one row. @param {{scores: Record<string, any>}} given */
export function Scores({ scores }) {
  const { t, amount } = useText();
  const entries = Object.entries(scores ?? {});
  const single = entries.filter(([, value]) => value === null || typeof value !== "object");
  const shown = (value) => (typeof value === "number" ? amount(value) : value === null || value === undefined ? "-" : Array.isArray(value) ? value.join(", ") : typeof value === "object" ? Object.entries(value).map(([key, one]) => `${key} ${shown(one)}`).join(", ") : String(value));
  const table = (name, rows) => {
    const columns = [...new Set(rows.flatMap(([, row]) => Object.keys(row)))];
    return html`
      <${TableFrame} label=${name} key=${name}>
        <thead><tr><th scope="col">${name}</th>${columns.map((one) => html`<th scope="col" key=${one} class="number">${one}</th>`)}</tr></thead>
        <tbody>${rows.map(([key, row]) => html`<tr key=${key}><th scope="row">${key}</th>${columns.map((one) => html`<td key=${one} class="number">${shown(row[one])}</td>`)}</tr>`)}</tbody>
      <//>`;
  };
  if (!entries.length) return null;
  return html`
    <div class="calibrate-scores" aria-label=${t("calibrate.scores")} role="group">
      ${single.length > 0 && html`<dl class="facts">${single.map(([key, value]) => html`<div key=${key}><dt>${key}</dt><dd>${shown(value)}</dd></div>`)}</dl>`}
      ${entries.filter(([, value]) => isTable(value)).map(([name, value]) => table(name, Object.entries(value)))}
      ${entries.filter(([, value]) => isRows(value)).map(([name, value]) => table(name, value.map((row, at) => [row.name ?? row.operator ?? row.id ?? String(at + 1), row])))}
    </div>`;
}
