import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { TableFrame } from "../components/table-frame.js";
import { usePercent } from "./words.js";

/** Names that fits of ours use; others stand as they are. */
const NAMED = new Set([
  "operators", "samples", "error_pct", "median_pct", "unseen_pct", "step_measured_s", "step_before_s", "step_after_s",
  "error_before_pct", "error_after_pct", "steps_used", "steps_of", "memory_measured_gib", "memory_predicted_gib",
  "jobs", "setups", "fitted_pct", "left_out_pct",
]);
const SIGNED = ["error_before_pct", "error_after_pct"];

const isTable = (value) => value && typeof value === "object" && !Array.isArray(value) && Object.values(value).every((row) => row && typeof row === "object" && !Array.isArray(row));
const isRows = (value) => Array.isArray(value) && value.length > 0 && value.every((row) => row && typeof row === "object" && !Array.isArray(row));

/** Errors as a fit tells them: tables stay tables, single numbers stand in one row. @param {{scores: Record<string, any>}} given */
export function Scores({ scores }) {
  const { t, amount } = useText();
  const { time } = useTime();
  const { pct, signed } = usePercent();
  const entries = Object.entries(scores ?? {});
  const single = entries.filter(([, value]) => value === null || typeof value !== "object");
  const called = (key) => (NAMED.has(key) ? t(`calibrate.told.${key}`) : key);
  const number = (key, value) => (SIGNED.includes(key) ? signed(value) : key.endsWith("_pct") ? pct(value) : key.endsWith("_s") ? time(value) : amount(value));
  const shown = (key, value) => {
    if (typeof value === "number") return number(key, value);
    if (value === null || value === undefined) return "-";
    if (Array.isArray(value)) return value.join(", ");
    return typeof value === "object" ? Object.entries(value).map(([one, inner]) => `${called(one)} ${shown(one, inner)}`).join(", ") : String(value);
  };
  const table = (name, rows) => {
    const columns = [...new Set(rows.flatMap(([, row]) => Object.keys(row)))];
    return html`
      <${TableFrame} label=${called(name)} key=${name}>
        <thead><tr><th scope="col">${called(name)}</th>${columns.map((one) => html`<th scope="col" key=${one} class="number">${called(one)}</th>`)}</tr></thead>
        <tbody>${rows.map(([key, row]) => html`<tr key=${key}><th scope="row">${key}</th>${columns.map((one) => html`<td key=${one} class="number">${shown(one, row[one])}</td>`)}</tr>`)}</tbody>
      <//>`;
  };
  if (!entries.length) return null;
  return html`
    <div class="calibrate-scores" aria-label=${t("calibrate.scores")} role="group">
      ${single.length > 0 && html`<dl class="facts">${single.map(([key, value]) => html`<div key=${key}><dt>${called(key)}</dt><dd>${shown(key, value)}</dd></div>`)}</dl>`}
      ${entries.filter(([, value]) => isTable(value)).map(([name, value]) => table(name, Object.entries(value)))}
      ${entries.filter(([, value]) => isRows(value)).map(([name, value]) => table(name, value.map((row, at) => [row.name ?? row.operator ?? row.id ?? String(at + 1), row])))}
    </div>`;
}
