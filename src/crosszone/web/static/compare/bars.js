import { html, useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { barsHeight, barsOption, tokenOf } from "../charts/result-bars.js";
import { useFigures } from "./figures.js";
import { wordOf } from "./words.js";

const WAYS = ["classes", "parts", "phases"];

/** One step of each chosen result, to one scale. @param {{found: any, by: string | null, choose: (by: string | null) => void}} given */
export function Bars({ found, by, choose }) {
  const text = useText();
  const { t } = text;
  const { figure, percent } = useFigures();
  const tokens = useTokens();
  const narrow = useMemo(() => matchMedia("(max-width: 700px)").matches, []);
  const way = WAYS.includes(by) ? by : "classes";
  const word = useMemo(() => wordOf(text, way), [text, way]);
  const step = found.figures.find((row) => row.name === "step_time_s").cells;
  const option = useMemo(() => barsOption(found, way, step, { word, figure, percent, step: t("compare.step") }, tokens, narrow), [found, way, word, tokens, narrow]);
  const table = useMemo(
    () => ({
      columns: [t("compare.column.name"), ...found[way].map((row) => word(row.name)), t("compare.figure.step_time_s")],
      rows: found.sides.map((side, at) => [side.name, ...found[way].map((row) => row.cells[at]?.value ?? null), side.step_s]),
    }),
    [found, way, word],
  );
  const names = found.sides.map((side) => side.name).join(", ");
  return html`
    <${Card} id="compare-bars" title=${t("compare.bars")} aside=${t("compare.bars_about")}>
      <div class="bar">
        <div class="segmented" role="group" aria-label=${t("compare.by")}>
          ${WAYS.map((one) => html`<button type="button" key=${one} aria-pressed=${String(one === way)} onClick=${() => choose(one === "classes" ? null : one)}>${t(`compare.by_${one}`)}</button>`)}
        </div>
      </div>
      <${Chart} name="results" option=${option} table=${table} height=${barsHeight(found)}
        label=${t("compare.bars_label", { names, scale: figure("step_time_s", found.scale_s) })}>
        <ul class="compare-legend">
          ${found[way].map((row) => html`<li key=${row.name}><span class=${`swatch ${row.name}`} style=${{ backgroundColor: tokens[tokenOf(way, row.name)] }}></span>${word(row.name)}</li>`)}
        </ul>
      <//>
    <//>`;
}
