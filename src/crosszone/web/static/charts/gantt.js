import { html, useEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { useTime } from "../lib/time.js";
import { Chart } from "../components/chart.js";
import { drawnRow, registerBars } from "./gantt-row.js";
import { barsOf, CHUNK, END, firstAt, KIND, MICRO, rowsOf, START } from "./gantt-rows.js";
import { laneName } from "./lane-name.js";

const NARROW = "(max-width: 700px)";
const ROW_HEIGHT = 22;
const TOP = 54;
/** With more rows than that they scroll inside the frame. */
const MANY_ROWS = 72;

/**
 * Lanes over time: predicted, measured, or one beside the other on one axis.
 * @param {{
 *   name: string, label: string, view: any, measured?: any, groups: string[], hidden: Set<string>, selected?: number | null,
 *   range?: [number, number] | null, bounds?: [number, number], onRange?: (range: [number, number] | null) => void, onMicroBatch?: (micro: number, measured: boolean) => void,
 *   table?: any, others?: boolean, handle?: {current: any}, children?: any,
 * }} given `range`: seconds shown; `bounds`: seconds the axis reaches over; `others`: only the selected micro-batch stands out
 */
export function Gantt({ name, label, view, measured = null, groups, hidden, selected = null, range, bounds, onRange, onMicroBatch, table, others = false, handle, children }) {
  const { t } = useText();
  const tokens = useTokens();
  const { time, range: between } = useTime();
  const narrow = useNarrow();
  const own = useRef(null);
  const chart = handle ?? own;
  const first = useRef(range);
  const [from, to] = bounds ?? [0, Math.max(view?.step_s ?? 0, measured?.step_s ?? 0)];
  const rows = useMemo(() => rowsOf(view, measured, groups), [view, measured, groups]);
  const bars = useMemo(() => barsOf(rows, view, measured, hidden), [rows, hidden]);
  const mouse = useRef(0);
  const barAt = (row, pixel) => {
    const at = chart.current.convertFromPixel({ xAxisIndex: 0 }, pixel);
    const found = bars[row][firstAt(bars[row], at)];
    return found && found[START] <= at ? found : null;
  };

  const option = useMemo(() => {
    const beneath = (row, at) => row.measured && view && rows[at - 1] && (rows[at - 1].lane?.id === row.lane?.id);
    const called = (row, at) => (beneath(row, at) ? `↳ ${t("timeline.measured_lane")}` : !row.lane ? t("timeline.phases") : laneName(row.lane, t, narrow));
    const told = ({ dataIndex }) => {
      const row = rows[dataIndex];
      const bar = barAt(dataIndex, mouse.current);
      if (!bar) return row.lane ? laneName(row.lane, t) : "";
      const what = row.lane ? t(`timeline.kind.${bar[KIND]}`) : t(`timeline.phase.${bar[KIND]}`);
      return [
        row.lane ? laneName(row.lane, t) : t("timeline.phases"),
        row.measured ? `${what} (${t("timeline.measured_lane")})` : what,
        bar[MICRO] >= 0 ? t("timeline.micro_batch_number", { number: bar[MICRO] }) + (bar[CHUNK] > 0 ? `, ${t("timeline.chunk_number", { number: bar[CHUNK] })}` : "") : null,
        `${time(bar[END] - bar[START])}   ${between(bar[START], bar[END])}`,
      ].filter(Boolean).join("\n");
    };
    const axis = { type: "category", inverse: true, data: rows.map((_, at) => at), axisTick: { show: false }, axisLine: { show: false } };
    const zoom = { xAxisIndex: 0, filterMode: "none", minValueSpan: (to - from) / 1e5, ...(first.current ? { startValue: first.current[0], endValue: first.current[1] } : {}) };
    return {
      grid: { left: narrow ? 78 : 242, right: narrow ? 44 : 56, top: TOP, bottom: 6 },
      tooltip: { trigger: "item", formatter: told, confine: true },
      xAxis: {
        type: "value", position: "top", min: from, max: to, splitLine: { lineStyle: { color: tokens["line-soft"] } },
        axisLabel: { color: tokens.quiet, formatter: (value) => time(value), hideOverlap: true, showMinLabel: true },
      },
      yAxis: [
        { ...axis, axisLabel: { interval: 0, color: tokens.text, width: narrow ? 70 : 230, overflow: "truncate", formatter: (_, at) => called(rows[at], at) } },
        { ...axis, position: "right", axisLabel: { interval: 0, color: tokens.quiet, formatter: (_, at) => (rows[at].lane ? `${(100 * rows[at].lane.utilisation).toFixed(1)} %` : "") } },
      ],
      dataZoom: [
        { type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseMove: true, moveOnMouseWheel: false, ...zoom },
        {
          type: "slider", top: 6, height: 16, brushSelect: false, showDataShadow: false, showDetail: false, borderColor: tokens.line, fillerColor: tokens["accent-soft"],
          handleStyle: { color: tokens.surface, borderColor: tokens.accent }, moveHandleStyle: { color: tokens.line, opacity: 1 }, moveHandleSize: 4, ...zoom,
        },
      ],
      series: [{
        type: "custom", progressive: 0, clip: true, emphasis: { disabled: true }, encode: { x: [1, 2], y: 0 }, data: rows.map((_, at) => [at, from, to]),
        renderItem: drawnRow(bars, tokens, { selected, others, phase: (one) => t(`timeline.phase.${one}`) }),
      }],
    };
  }, [rows, bars, tokens, t, narrow, selected, from, to, others]);

  const span = useRef(range ?? [from, to]);
  const zoomTo = (start, end) => {
    const width = Math.min(end - start, to - from);
    const at = Math.max(from, Math.min(start, to - width));
    chart.current?.dispatchAction({ type: "dataZoom", startValue: at, endValue: at + width });
  };
  useEffect(() => {
    if (range) zoomTo(...range);
  }, [range?.[0], range?.[1]]);
  const onZoom = (event) => {
    const { start, end } = event.batch?.[0] ?? event;
    if (start !== undefined) span.current = [from + (start / 100) * (to - from), from + (end / 100) * (to - from)];
    else span.current = [event.startValue, event.endValue];
    const [a, b] = span.current;
    onRange?.(b - a > 0.999 * (to - from) ? null : [a, b]);
  };
  const around = (factor) => {
    const [a, b] = span.current;
    const middle = (a + b) / 2;
    zoomTo(middle - ((b - a) * factor) / 2, middle + ((b - a) * factor) / 2);
  };
  const move = (share) => zoomTo(span.current[0] + share * (span.current[1] - span.current[0]), span.current[1] + share * (span.current[1] - span.current[0]));
  const click = (event) => {
    const bar = barAt(event.dataIndex, event.event.offsetX);
    if (bar && bar[MICRO] >= 0) onMicroBatch?.(bar[MICRO], rows[event.dataIndex].measured);
  };
  const buttons = [["zoom_in", "+", () => around(0.5)], ["zoom_out", "−", () => around(2)], ["move_back", "←", () => move(-0.5)], ["move_on", "→", () => move(0.5)]];
  return html`
    <div class="gantt">
      <div class="gantt-head">
        <div class="gantt-legend">${children}</div>
        <div class="gantt-zoom" role="group" aria-label=${t("timeline.zoom")}>
          ${buttons.map(([key, sign, act]) => html`<button type="button" class="small" aria-label=${t(`timeline.${key}`)} title=${t(`timeline.${key}`)} onClick=${act}>${sign}</button>`)}
          <button type="button" class="small" onClick=${() => zoomTo(from, to)}>${t("timeline.fit")}</button>
        </div>
      </div>
      <div class=${`gantt-frame${rows.length > MANY_ROWS ? " tall" : ""}`} onMouseMoveCapture=${(event) => (mouse.current = event.offsetX)}>
        <${Chart} name=${name} label=${label} option=${option} height=${TOP + 6 + rows.length * ROW_HEIGHT} handle=${chart} table=${table} prepare=${registerBars}
          onEvents=${{ datazoom: onZoom, click }} />
      </div>
    </div>`;
}

/** Whether the page is too narrow for long names. */
function useNarrow() {
  const [narrow, setNarrow] = useState(() => matchMedia(NARROW).matches);
  useEffect(() => {
    const query = matchMedia(NARROW);
    const follow = () => setNarrow(query.matches);
    query.addEventListener("change", follow);
    return () => query.removeEventListener("change", follow);
  }, []);
  return narrow;
}
