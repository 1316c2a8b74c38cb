import { html, useMemo, useRef, useState } from "../lib/dom.js";
import { fetchJson } from "../lib/api.js";
import { useAsked } from "../lib/asked.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { registerBars } from "../charts/gantt-row.js";
import { KIND_TOKENS, kindsOf } from "../charts/gantt-rows.js";
import { laneName } from "../charts/lane-name.js";
import { lanesHeight, lanesOf, lanesOption } from "../charts/result-lanes.js";

const MOST = 8;
const STAGES = 8;
const WORDS = ["best", "first", "last"];

/** One step of each chosen result, lane by lane, on one axis. @param {{sides: {id: string, name: string}[]}} given */
export function Timelines({ sides }) {
  const { t, language } = useText();
  const [iteration, setIteration] = useState("best");
  const ids = sides.filter((side) => side.id).slice(0, MOST).map((side) => side.id).join();
  const names = sides.map((side) => side.name).join();
  const question = useMemo(() => (ids ? { ids: ids.split(","), iteration } : null), [ids, names, iteration]);
  const asked = useAsked(question, (sent, signal) => everyTimeline(sent, language, signal), { also: [language] });
  const views = asked.answer?.views ?? [];
  const missing = asked.answer?.missing ?? [];
  const several = views.some((view) => view.steps?.step.length > 1);
  return html`
    <${Card} id="compare-timelines" title=${t("compare.timelines")} aside=${t("compare.timelines_about")}>
      <div aria-busy=${asked.busy}>
        ${several && html`
          <div class="bar">
            <div class="segmented" role="group" aria-label=${t("compare.iteration")}>
              ${WORDS.map((word) => html`<button type="button" key=${word} aria-pressed=${String(word === iteration)} onClick=${() => setIteration(word)}>${t(`compare.iteration_${word}`)}</button>`)}
            </div>
          </div>`}
        ${views.length > 0 && html`<${Drawn} views=${views} />`}
        ${!views.length && html`<p class="empty">${asked.busy ? t("compare.loading") : t("compare.no_timelines")}</p>`}
        ${views.length > 0 && missing.length > 0 && html`<p class="quiet-text compare-note">${t("compare.without_timeline", { names: missing.join(", ") })}</p>`}
        ${sides.length > MOST && html`<p class="quiet-text compare-note">${t("compare.timelines_most", { limit: MOST })}</p>`}
      </div>
    <//>`;
}

/** The timelines of all results; those that have none are named. */
async function everyTimeline({ ids, iteration }, language, signal) {
  const found = await Promise.all(
    ids.map((id) =>
      fetchJson(`results/${id}/timeline?iteration=${iteration}`, language, signal).catch((error) => {
        if (error.name === "AbortError" || !error.status) throw error;
        return { lost: error.notices?.[0]?.value ?? id };
      }),
    ),
  );
  return { views: found.filter((one) => !("lost" in one)), missing: found.filter((one) => "lost" in one).map((one) => one.lost) };
}

function Drawn({ views }) {
  const { t } = useText();
  const { time } = useTime();
  const tokens = useTokens();
  const narrow = useMemo(() => matchMedia("(max-width: 700px)").matches, []);
  const chart = useRef(null);
  const mouse = useRef(0);
  const scale = Math.max(...views.map((view) => view.step_s));
  const rows = useMemo(() => lanesOf(views, STAGES), [views]);
  const kinds = useMemo(() => kindsOf(views).filter((kind) => kind !== "idle"), [views]);
  const option = useMemo(() => {
    const at = () => chart.current?.convertFromPixel({ xAxisIndex: 0 }, mouse.current) ?? null;
    const say = { time, phase: (name) => t(`timeline.phase.${name}`), kind: (name) => t(`timeline.kind.${name}`), lane: (lane, short) => laneName(lane, t, short) };
    return lanesOption(rows, views, scale, say, tokens, { narrow, at });
  }, [rows, tokens, t, narrow, scale]);
  const table = useMemo(() => ({
    columns: [t("compare.column.name"), t("compare.figure.step_time_s"), ...views[0].phases.map((one) => t(`compare.phase.${one.phase}`))],
    rows: views.map((view) => [view.name, view.step_s, ...view.phases.map((one) => one.seconds)]),
  }), [views, t]);
  return html`
    <div onMouseMoveCapture=${(event) => (mouse.current = event.offsetX)}>
      <${Chart} name="result-timelines" option=${option} table=${table} height=${lanesHeight(rows)} handle=${chart} prepare=${registerBars}
        label=${t("compare.timelines_label", { names: views.map((view) => view.name).join(", "), scale: time(scale) })}>
        <ul class="compare-legend">
          ${kinds.map((kind) => html`<li key=${kind}><span class="swatch" style=${{ backgroundColor: tokens[KIND_TOKENS[kind]] }}></span>${t(`timeline.kind.${kind}`)}</li>`)}
        </ul>
      <//>
    </div>`;
}
