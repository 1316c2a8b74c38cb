import { html, useMemo } from "../lib/dom.js";
import { Chart } from "../components/chart.js";
import { TableFrame } from "../components/table-frame.js";
import { differenceOption } from "../charts/difference.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { Told } from "./long.js";
import { useWords } from "./words.js";

/** Figures of the comparison: key, label and factor. @type {[string, string, number][]} */
const FIGURES = [
  ["step_time_s", "what_if_step", 1], ["tokens_per_s", "what_if_speed", 1], ["mfu", "what_if_mfu", 100], ["exposed_s", "what_if_exposed", 1],
  ["between_zones_gb", "what_if_zones", 1], ["memory_gib", "what_if_memory", 1], ["days", "what_if_days", 1], ["usd", "what_if_usd", 1],
];
/** Share of the step from which on the change of a part is drawn. */
const SMALL = 1e-4;

/** A prediction with switches turned, beside the one without. */
export function WhatIf({ found, old }) {
  const { t, label } = useText();
  const { said, change, large, value } = useWords();
  const rows = new Map(found.figures.map((row) => [row.name, row.cells]));
  const fits = found.after.memory_gib.fits;
  return html`
    <div class=${old ? "old" : ""} data-what-if=${old ? "old" : "new"}>
      <h3>${label("what_if_title")}</h3>
      <${TableFrame} label=${label("what_if_title")}>
        <thead>
          <tr><th scope="col">${label("figure")}</th><th scope="col" class="number">${label("what_if_before")}</th><th scope="col" class="number">${label("what_if_after")}</th><th scope="col" class="number">${label("what_if_change")}</th></tr>
        </thead>
        <tbody>
          ${FIGURES.filter(([key]) => rows.get(key)?.every(Boolean)).map(([key, word, factor]) => {
            const [before, after] = rows.get(key);
            return html`
              <tr key=${key} data-figure=${`what-if-${key}`}>
                <th scope="row">${label(word)}</th>
                <td class="number"><data value=${before.value}>${large(factor * before.value)}</data></td>
                <td class="number"><data value=${after.value}>${large(factor * after.value)}</data></td>
                <td class=${`number ${after.verdict}`}>${after.percent === null ? change(factor * after.difference) : `${change(after.percent)} %`}</td>
              </tr>`;
          })}
        </tbody>
      <//>
      ${!fits && html`<p class="note-line wrong">${t("communication.switch.no_fit")}</p>`}
      <${Waterfall} found=${found} />
      <ul class="remarks">
        ${found.switches.filter((one) => one.before !== one.after).map((one) => html`
          <li key=${one.name}>
            <code>${one.name}: ${value(one.before)} → ${value(one.after)}</code> ${one.option && html`<code class="option">${one.option}</code>`}
            <span class="below">${one.convergence} ${one.source && said("what_if_source", { source: one.source })}</span>
          </li>`)}
      </ul>
      <${Told} notices=${found.notices} />
    </div>`;
}

/** From the step before to the step after, part by part. */
function Waterfall({ found }) {
  const { label } = useText();
  const tokens = useTokens();
  const title = label("what_if_parts");
  const step = found.before.step_time_s.expected;
  const parts = useMemo(() => found.difference.parts.filter((part) => Math.abs(part.seconds) >= SMALL * step), [found]);
  const option = useMemo(() => {
    const named = parts.map((part) => ({ name: label(`step_${part.name}`), seconds: part.seconds }));
    return differenceOption(step, found.after.step_time_s.expected, named, { before: label("what_if_before"), after: label("what_if_after") }, tokens);
  }, [found, parts, label, tokens]);
  if (!parts.length) return null;
  const rows = parts.map((part) => [label(`step_${part.name}`), part.seconds]);
  return html`
    <h3>${title}</h3>
    <${Chart} name="what-if-parts" option=${option} height=${60 + 24 * (parts.length + 2)} label=${title}
      table=${{ columns: [label("step_part"), label("time_s")], rows: [...rows, [label("total"), found.difference.step_s]] }} />`;
}
