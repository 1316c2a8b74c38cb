import { html, useEffect, useMemo, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { Card } from "../components/card.js";
import { Gantt } from "../charts/gantt.js";
import { kindsOf } from "../charts/gantt-rows.js";
import { Exports } from "./exports.js";
import { Legend } from "./legend.js";

const FEW_LANES = 48;
const ADDRESS_PAUSE_MS = 250;

/**
 * The chart with its legend, which lanes are shown, and files to keep.
 * @param {{view: any, measured: any, body: any, micro: number | null, openMicro: (micro: number) => void, zoom: [number, number] | null,
 *   setZoom: (range: [number, number] | null) => void, setFromS: (from: number) => void, chart: {current: any}}} given
 */
export function Drawing({ view, measured, body, micro, openMicro, zoom, setZoom, setFromS, chart }) {
  const { t, amount } = useText();
  const { time } = useTime();
  const [hidden, setHidden] = useState(() => new Set());
  const [chosen, setChosen] = useState(null);
  const all = useMemo(() => [...new Set([view, measured].filter(Boolean).flatMap((one) => one.lanes.map((lane) => lane.group)))], [view, measured]);
  const lanes = (view?.lanes.length ?? 0) + (measured?.lanes.length ?? 0);
  const groups = useMemo(() => all.filter((group) => (chosen ? chosen.includes(group) : lanes <= FEW_LANES || group === all[0])), [all, chosen, lanes]);
  const kinds = useMemo(() => kindsOf([view, measured]), [view, measured]);
  const table = useMemo(() => tableOf(view, measured, t), [view, measured, t]);
  const later = useMemo(() => paused(setZoom, ADDRESS_PAUSE_MS), []);
  const named = (group) => (["stages", "links", "gradients", "host"].includes(group) ? t(`timeline.group.${group}`) : group);
  const toggle = (group) => setChosen(groups.includes(group) ? groups.filter((one) => one !== group) : [...groups, group]);
  const { from_s: from, to_s: to, left_out: leftOut, shown, spans } = view?.window ?? { left_out: 0 };
  useEffect(() => {
    if (leftOut > 0 && from > 0) setZoom([from, to]);
  }, [leftOut, from, to]);
  return html`
    <${Card} id="timeline-drawing" title=${t("timeline.heading")} aside=${t("timeline.about")}>
      <div class="timeline-bar">
        <div class="segmented" role="group" aria-label=${t("timeline.groups")}>
          ${all.map((group) => html`<button type="button" aria-pressed=${groups.includes(group)} onClick=${() => toggle(group)}>${named(group)}</button>`)}
        </div>
        <span class="grow"></span>
        ${body && html`<${Exports} body=${body} name=${view?.name ?? ""} />`}
      </div>
      ${leftOut > 0 && html`
        <p class="timeline-window" role="status">
          ${t("timeline.window", { shown: amount(shown), spans: amount(spans), from: time(from), to: time(to) })}
          <button type="button" class="small" disabled=${from === 0} onClick=${() => setFromS(0)}>${t("timeline.window_first")}</button>
          <button type="button" class="small" disabled=${to >= view.step_s} onClick=${() => setFromS(to)}>${t("timeline.window_next")}</button>
        </p>`}
      <${Gantt} name="timeline" label=${t("timeline.label", { lanes: amount(lanes), step: time((view ?? measured).step_s) })} view=${view} measured=${measured}
        groups=${groups} hidden=${hidden} selected=${micro} range=${zoom} onRange=${later} onMicroBatch=${(number, of) => !of && openMicro(number)} table=${table} handle=${chart}>
        <${Legend} kinds=${kinds} hidden=${hidden} setHidden=${setHidden} />
      <//>
      <p class="hint timeline-hint">${t("timeline.hint")}</p>
    <//>`;
}

function tableOf(view, measured, t) {
  const columns = ["lane", "origin", "utilisation", "busy", "idle"].map((key) => t(`timeline.column.${key}`));
  const rows = (source, origin) => (source?.lanes ?? []).map((lane) => [lane.name, t(`timeline.${origin}`), lane.utilisation, lane.busy_s, lane.idle_s]);
  return { columns, rows: [...rows(view, "predicted_lane"), ...rows(measured, "measured_lane")] };
}

/** `act`, when it was not called again for a while. */
function paused(act, milliseconds) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), milliseconds);
  };
}
