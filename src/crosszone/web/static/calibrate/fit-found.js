import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { Card } from "../components/card.js";
import { Facts } from "../components/facts.js";
import { More } from "../components/more.js";
import { TableFrame } from "../components/table-frame.js";
import { Remarks } from "./remarks.js";
import { SaveProfile } from "./save-profile.js";
import { usePercent } from "./words.js";

/** What a fit found: errors, values before and after, what stays unknown, the run that would help; and the way to keep it. @param {{found: any, own: import("./own.js").Own}} given */
export function FitFound({ found, own }) {
  const { t, amount } = useText();
  const facts = Object.entries(found.facts).map(([key, value]) => [t(`calibrate.fact.${key}`), typeof value === "number" ? amount(value) : Array.isArray(value) ? value.join(", ") : value]);
  return html`
    <${Card} id="calibrate-found" title=${t("calibrate.found.heading", { name: found.name })} aside=${found.source}>
      <${Facts} facts=${facts} />
      <${Remarks} notices=${found.notices} />
      ${found.step && html`<${Step} step=${found.step} />`}
      ${found.errors.length > 0 && html`<${Errors} rows=${found.errors} run=${Boolean(found.step)} />`}
      ${found.values.length > 0 && html`<${Values} rows=${found.values} />`}
      <${Unknown} found=${found} />
      <${Next} found=${found} />
      ${found.profile
        ? html`<${SaveProfile} key=${found.profile.name + found.profile.created} profile=${found.profile} own=${own} />`
        : html`<p class="empty">${t("calibrate.found.no_profile")}</p>`}
    <//>`;
}

/** What stays as it was, and what that is worth. */
function Unknown({ found }) {
  const { t } = useText();
  const { pct } = usePercent();
  if (!found.unknown.length && !found.untold.length) return null;
  return html`
    <h3 class="calibrate-sub">${t("calibrate.found.unknown")}</h3>
    ${found.unknown.length > 0 && html`<ul class="calibrate-list">${found.unknown.map((one) => html`<li key=${one}>${one}</li>`)}</ul>`}
    ${found.untold.length > 0 && html`
      <${TableFrame} label=${t("calibrate.found.unknown")}>
        <thead><tr><th scope="col">${t("column.coefficient")}</th><th scope="col" class="number">${t("calibrate.column.error")}</th>
          <th scope="col" class="number">${t("calibrate.column.worth")}</th><th scope="col">${t("calibrate.column.in")}</th></tr></thead>
        <tbody>${found.untold.map((row) => html`
          <tr key=${row.field}><th scope="row"><code>${row.field}</code><span class="below">${t(`coefficient.${row.field}`)}</span></th>
            <td class="number">±${pct(row.error_pct)}</td><td class="number">±${pct(row.worth_pct)}</td><td>${row.alternative || t("calibrate.found.this")}</td></tr>`)}</tbody>
      <//>`}`;
}

/** The short runs that would narrow the order of the best plans most. */
function Next({ found }) {
  const { t } = useText();
  const { time } = useTime();
  const { pct } = usePercent();
  if (!found.next.length && !found.next_runs.length) return null;
  return html`
    <h3 class="calibrate-sub">${t("calibrate.found.next")}</h3>
    ${found.next.length > 0 && html`<ul class="calibrate-list">${found.next.map((one) => html`<li key=${one}>${one}</li>`)}</ul>`}
    ${found.next_runs.length > 0 && html`
      <${TableFrame} label=${t("calibrate.found.next")}>
        <thead><tr><th scope="col">${t("calibrate.column.run")}</th><th scope="col" class="number">${t("calibrate.column.predicted")}</th>
          <th scope="col" class="number">${t("calibrate.column.order_before")}</th><th scope="col" class="number">${t("calibrate.column.order_after")}</th></tr></thead>
        <tbody><${More} most=${5} items=${found.next_runs} columns=${4} row=${(row) => html`
          <tr key=${row.name} data-next=${row.name}><th scope="row"><code>${row.name}</code></th><td class="number">${time(row.step_s)}</td><td class="number">±${pct(row.sd_before_pct)}</td><td class="number">±${pct(row.sd_after_pct)}</td></tr>`} /></tbody>
      <//>`}`;
}

/** The step that was measured, and what is predicted of it before and after. */
function Step({ step }) {
  const { t } = useText();
  const { time } = useTime();
  const { signed } = usePercent();
  return html`
    <div class="strip calibrate-strip" data-step>
      <dl class="tile"><dt>${t("calibrate.found.measured")}</dt><dd>${time(step.measured_s)}</dd></dl>
      <dl class="tile"><dt>${t("calibrate.found.before")}</dt><dd>${time(step.before_s)}</dd><dd class="below">${signed(step.before_pct)}</dd></dl>
      <dl class="tile"><dt>${t("calibrate.found.after")}</dt><dd>${time(step.after_s)}</dd><dd class="below">${signed(step.after_pct)}</dd></dl>
    </div>`;
}

const ERRORS = ["before_pct", "after_pct", "median_pct", "unseen_pct"];

/** @param {{rows: any[], run: boolean}} given run: errors of a step and its parts, not of samples */
function Errors({ rows, run }) {
  const { t, amount } = useText();
  const { pct } = usePercent();
  const columns = ERRORS.filter((key) => rows.some((row) => row[key] !== null));
  return html`
    <h3 class="calibrate-sub">${t("calibrate.found.errors")}</h3>
    <${TableFrame} label=${t("calibrate.found.errors")}>
      <thead><tr><th scope="col">${t("calibrate.column.what")}</th><th scope="col" class="number">${t("calibrate.column.samples")}</th>
        ${columns.map((key) => html`<th scope="col" key=${key} class="number">${t(run && key === "after_pct" ? "calibrate.error.run_after_pct" : `calibrate.error.${key}`)}</th>`)}</tr></thead>
      <tbody><${More} most=${30} items=${rows} columns=${columns.length + 2} row=${(row) => html`
        <tr key=${row.name} data-error=${row.name}><th scope="row">${row.name}</th><td class="number">${amount(row.samples)}</td>${columns.map((key) => html`<td class="number" key=${key}>${pct(row[key])}</td>`)}</tr>`} /></tbody>
    <//>`;
}

function Values({ rows }) {
  const { t, amount } = useText();
  const { pct } = usePercent();
  return html`
    <h3 class="calibrate-sub">${t("calibrate.found.values")}</h3>
    <${TableFrame} label=${t("calibrate.found.values")}>
      <thead><tr><th scope="col">${t("column.coefficient")}</th><th scope="col">${t("calibrate.column.for")}</th><th scope="col" class="number">${t("calibrate.found.before")}</th>
        <th scope="col" class="number">${t("calibrate.found.after")}</th><th scope="col" class="number">${t("calibrate.column.error")}</th><th scope="col">${t("column.origin")}</th></tr></thead>
      <tbody>${rows.map((row) => html`
        <tr key=${`${row.home} ${row.field}`} data-value=${row.field}>
          <th scope="row"><code>${row.field}</code><span class="below">${t(`coefficient.${row.field}`)}</span></th><td>${row.home}</td>
          <td class="number">${amount(row.before)}</td><td class="number">${amount(row.after)} <span class="unit">${t(`unit.${row.unit.replace("/", "_per_")}`)}</span></td>
          <td class="number">±${pct(row.error_pct)}</td><td><span class="origin">${t(`rate_origin.${row.origin}`)}</span></td>
        </tr>`)}</tbody>
    <//>`;
}
