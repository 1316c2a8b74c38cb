import { html, useMemo, useState } from "../lib/dom.js";
import { Chart } from "../components/chart.js";
import { Facts } from "../components/facts.js";
import { heatOption } from "../charts/heat.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { presentOf } from "./heat-axes.js";
import { fieldWords } from "./heat-form.js";
import { useWords } from "./words.js";

/** A letter for what crosses zones, as the command line draws it. */
const LETTERS = {
  "one zone": "1", pp: "p", "dp flat": "f", "dp hierarchical": "h", "pp and dp flat": "F", "pp and dp hierarchical": "H", diloco: "D", "streaming diloco": "S", refused: "x",
};

/** The map of a sweep, what its letters mean, and the cell that was clicked: its values go into the scenario. */
export function HeatResult({ sweep, fields, description, given, applying }) {
  const { t, label, framework, amount } = useText();
  const { said, crossing } = useWords();
  const tokens = useTokens();
  const [clicked, setClicked] = useState(null);
  const name = (axis) => {
    const known = fields.find((one) => one.field === axis.field);
    return known ? fieldWords(known, t) : axis.field;
  };
  const cells = useMemo(() => sweep.cells.map((cell) => ({ ...cell, ...read(cell) })), [sweep]);
  const kinds = [...new Set(cells.map((cell) => cell.kind))];
  const lines = (cell) => factsOf(cell, { x: name(sweep.x), y: name(sweep.y) }, { label, framework, amount, crossing, t });
  const present = useMemo(() => [sweep.x, sweep.y].map((axis) => presentOf(axis.field, description, given)), [sweep, description, given]);
  const known = present.every((value) => value !== null);
  const option = useMemo(
    () => heatOption(
      { x: sweep.x, y: sweep.y, cells, flips: sweep.flips, present },
      { x: name(sweep.x), y: name(sweep.y), step: label("what_if_step"), present: t("communication.heat.present"), letter: (cell) => LETTERS[cell.kind], tell: (cell) => lines(cell).map(([key, value]) => `${key}: ${value}`).join("\n"), number: amount },
      tokens,
    ),
    [sweep, cells, present, tokens, label],
  );
  const choose = ({ dataIndex, seriesId }) => {
    if (seriesId !== "cells") return;
    const cell = cells[dataIndex];
    setClicked(cell);
    applying.apply({ [sweep.x.field]: cell.x, [sweep.y.field]: cell.y }, t("communication.heat.point", { x: amount(cell.x), y: amount(cell.y) }));
  };
  return html`
    <div class="heat-result" data-flips=${sweep.flips.length} data-cells=${cells.length}>
      <p class="note-line">
        ${said("sweep_did", { cells: amount(cells.length), s: amount(Number(sweep.seconds.toPrecision(3))) })} ·
        ${kinds.length === 1 ? ` ${label("sweep_no_flip")}` : ` ${t("communication.heat.flips", { kinds: kinds.map(crossing).join(label("comma")) })}`}
      </p>
      <${Chart} name="heat-map" option=${option} height=${100 + Math.max(7, sweep.y.values.length) * 26} onEvents=${{ click: choose }}
        label=${t("communication.heat.drawn", { x: name(sweep.x), y: name(sweep.y) })}
        table=${{
          columns: [name(sweep.x), name(sweep.y), label("what_if_step"), label("what_if_speed"), label("sweep_choice"), "tp", "pp", "dp", t("plan.table.framework"), label("sweep_synchronous")],
          rows: cells.map((cell) => [cell.x, cell.y, cell.step, cell.tokens, crossing(cell.kind), cell.choice?.tp, cell.choice?.pp, cell.choice?.dp, cell.choice && framework(cell.choice.framework), cell.synchronous?.step_time_s.expected]),
        }} />
      <ul class="legend letters">
        ${kinds.map((kind) => html`<li key=${kind}><b>${LETTERS[kind]}</b>${crossing(kind)}</li>`)}
        ${sweep.flips.length > 0 && html`<li><i class="flip-line"></i>${t("communication.heat.line")}</li>`}
        ${known && html`<li><i class="present-point"></i>${t("communication.heat.present")} (${present.map((value) => amount(value)).join(label("comma"))})</li>`}
      </ul>
      <p class="note-line">${clicked ? "" : t("communication.heat.click")}</p>
      ${clicked && html`<${Facts} facts=${lines(clicked)} />`}
    </div>`;
}

/** What is best in a cell. */
function read(cell) {
  const best = cell.best ? cell[cell.best] : null;
  return {
    kind: best?.choice.kind ?? "refused", choice: best?.choice ?? null, step: best?.step_time_s.expected ?? null, tokens: best?.tokens_per_s.expected ?? null, outcome: best,
  };
}

function factsOf(cell, names, { label, framework, amount, crossing, t }) {
  const { choice, outcome } = cell;
  const place = [[names.x, amount(cell.x)], [names.y, amount(cell.y)]];
  if (!outcome) return [...place, [label("sweep_choice"), cell.refusal?.message ?? crossing("refused")]];
  const degrees = ["tp", "pp", "dp", "cp", "ep"].filter((axis) => choice[axis] > 1).map((axis) => `${axis} ${choice[axis]}`).join(" ");
  const known = (key, value) => (value === null || value === undefined ? [] : [[key, amount(value)]]);
  return [
    ...place,
    [label("what_if_step"), `${amount(outcome.step_time_s.expected)} (${amount(outcome.step_time_s.low)} - ${amount(outcome.step_time_s.high)})`],
    ...known(label("what_if_speed"), cell.tokens),
    [label("sweep_choice"), [crossing(cell.kind), degrees, framework(choice.framework)].filter(Boolean).join(", ")],
    [t("communication.heat.zones"), choice.zones.join(label("comma"))],
    ...known(label("sweep_synchronous"), cell.synchronous?.step_time_s.expected),
    ...known(t("communication.heat.local_step"), cell.local_update?.step_time_s.expected),
    ...known(label("bill_per_hour"), outcome.usd_per_hour),
    ...known(label("what_if_usd"), outcome.run_usd?.expected),
  ];
}
