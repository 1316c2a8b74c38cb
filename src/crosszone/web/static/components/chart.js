import { html, useEffect, useRef } from "../lib/dom.js";
import { useEcharts } from "../lib/echarts.js";
import { csvText, fileName, saveAddress, saveText } from "../lib/save.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { TableFrame } from "./table-frame.js";

/**
 * A chart with its figures as a table beneath, and both to keep as files.
 * `option` must be memoised: a new object is drawn anew. Text and tooltips take the theme's colours by default.
 * @param {{
 *   option: any, label: string, height?: number | string, name: string,
 *   table?: {columns: string[], rows: unknown[][]},
 *   onEvents?: Record<string, (event: any) => void>, handle?: {current: any}, prepare?: (library: any) => void, children?: any,
 * }} given `name`: of the files; `handle.current`: the chart itself; `prepare`: called with ECharts before the first drawing
 */
export function Chart({ option, label, height = 260, name, table, onEvents, handle, prepare, children }) {
  const { t, shown } = useText();
  const echarts = useEcharts();
  const tokens = useTokens();
  const place = useRef(null);
  const chart = useRef(null);
  const events = useRef(onEvents);
  events.current = onEvents;

  useEffect(() => {
    if (!echarts) return undefined;
    prepare?.(echarts);
    const made = echarts.init(place.current, null, { renderer: "canvas" });
    chart.current = made;
    if (handle) handle.current = made;
    for (const kind of Object.keys(events.current ?? {})) made.on(kind, (event) => events.current[kind](event));
    const watcher = new ResizeObserver(([{ contentRect }]) => contentRect.width && contentRect.height && made.resize()); // nothing can be drawn where there is no room
    watcher.observe(place.current);
    return () => {
      watcher.disconnect();
      made.dispose();
      if (handle) handle.current = null;
    };
  }, [echarts]);
  useEffect(() => {
    if (echarts && option) chart.current.setOption(themed(option, tokens), { replaceMerge: ["series", "graphic"], lazyUpdate: false });
  }, [echarts, option, tokens]);

  const savePicture = () =>
    saveAddress(chart.current.getDataURL({ pixelRatio: 2, backgroundColor: tokens.surface }), `${fileName(name)}.png`);
  const saveTable = () => saveText(csvText(table.columns, table.rows), `${fileName(name)}.csv`, "text/csv");
  return html`
    <figure class="chart" data-chart=${name}>
      <div class="chart-place" ref=${place} role="img" aria-label=${label} style=${{ height: typeof height === "number" ? `${height}px` : height }}></div>
      ${children}
      <figcaption class="chart-foot">
        ${table && html`
          <details class="chart-table">
            <summary>${t("chart.table")}</summary>
            <${TableFrame} label=${label}>
              <thead><tr>${table.columns.map((column) => html`<th scope="col">${column}</th>`)}</tr></thead>
              <tbody>
                ${table.rows.slice(0, 200).map((row) => html`
                  <tr>${row.map((cell, at) => (at ? html`<td class=${typeof cell === "number" ? "number" : ""}>${shown(cell ?? "-")}</td>` : html`<th scope="row">${shown(cell)}</th>`))}</tr>`)}
              </tbody>
            <//>
          </details>`}
        <span class="chart-files">
          <button type="button" class="quiet small" disabled=${!echarts} onClick=${savePicture} title=${t("chart.png_title")}>PNG</button>
          ${table && html`<button type="button" class="quiet small" onClick=${saveTable} title=${t("chart.csv_title")}>CSV</button>`}
        </span>
      </figcaption>
    </figure>`;
}

/** The option with the theme's text, tooltip and no movement unless it asks for it. */
function themed(option, tokens) {
  return {
    animation: false,
    textStyle: { color: tokens.text, fontFamily: tokens.sans, fontSize: 12 },
    ...option,
    tooltip: option.tooltip && {
      renderMode: "richText",
      backgroundColor: tokens.raised,
      borderColor: tokens.line,
      textStyle: { color: tokens.text, fontSize: 12, fontFamily: tokens.sans },
      ...option.tooltip,
    },
  };
}
