import { html, useMemo, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { curveOption } from "../charts/curve.js";

const FIGURES = ["tokens_per_s", "step_s"];

/** Loss, and speed against the predicted band, as they come in. @param {{task: any, rows: any[]}} given */
export function Curves({ task, rows }) {
  const { t, amount } = useText();
  const { time } = useTime();
  const [figure, setFigure] = useState("tokens_per_s");
  const { prediction } = task;
  const short = (value) => amount(Number(value.toPrecision(4)));
  const band = prediction && (figure === "step_s" ? prediction.step_time_s : prediction.tokens_per_s);
  if (!rows.length) {
    return html`<${Card} id="train-curves" title=${t("train.curves")}><p class="empty">${t("train.no_steps")}</p><//>`;
  }
  return html`
    <${Card} id="train-curves" title=${t("train.curves")} aside=${t("train.curves_about")}>
      <div class="train-curves">
        <div>
          <div class="bar"><h3>${t("train.fact.loss")}</h3></div>
          <${Curve} name="train-loss" title=${t("train.fact.loss")} rows=${rows} figure="loss" band=${null} written=${short} />
        </div>
        <div>
          <div class="bar">
            <div class="segmented" role="group" aria-label=${t("train.curves")}>
              ${FIGURES.map((one) => html`<button type="button" key=${one} aria-pressed=${String(one === figure)} onClick=${() => setFigure(one)}>${t(`train.curve.${one}`)}</button>`)}
            </div>
          </div>
          <${Curve} name="train-speed" title=${t(`train.curve.${figure}`)} rows=${rows} figure=${figure} band=${band} written=${figure === "step_s" ? time : short} />
        </div>
      </div>
    <//>`;
}

function Curve({ name, title, rows, figure, band, written }) {
  const { t, language } = useText();
  const tokens = useTokens();
  const points = useMemo(() => rows.map((row) => /** @type {[number, number | null]} */ ([row.step, row[figure] ?? null])), [rows, figure]);
  const words = { name: title, step: t("train.column.step"), predicted: t("train.predicted"), written };
  const option = useMemo(() => curveOption(points, band, words, tokens), [points, band?.expected, tokens, language]);
  const table = useMemo(() => ({ columns: [words.step, title], rows: points }), [points, title]);
  return html`<${Chart} name=${name} option=${option} table=${table} height=${220} label=${band ? t("train.curve_band", { name: title, low: written(band.low), high: written(band.high) }) : title} />`;
}
