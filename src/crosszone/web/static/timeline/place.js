import { html, useMemo, useRef, useState } from "../lib/dom.js";
import { postJson } from "../lib/api.js";
import { useAnswers } from "../lib/answers.js";
import { useAsked } from "../lib/asked.js";
import { runAlone, usePart } from "../lib/requests.js";
import { useText } from "../lib/text.js";
import { Differences } from "./differences.js";
import { Drawing } from "./drawing.js";
import { MeasuredTrace } from "./measured-trace.js";
import { MicroBatch } from "./micro-batch.js";
import { Phases } from "./phases.js";
import { Summary } from "./summary.js";
import { Totals } from "./totals.js";
import { Refusal } from "./refusal.js";

/**
 * One step drawn: predicted, measured or both, with its phases, what each lane does, and one micro-batch opened.
 * @param {{address: import("../lib/address.js").Address, change: any}} given
 */
export function TimelinePlace({ address, change }) {
  const { t, language } = useText();
  const { body, stale, busy, notices: unanswered, planNotices } = useAnswers();
  const [trace, setTrace] = useState(null);
  const [fromS, setFromS] = useState(0);
  const micro = /^\d{1,8}$/.test(address.micro ?? "") ? Number(address.micro) : null;
  const zoom = useMemo(() => rangeOf(address.zoom), [address.zoom]);
  const chart = useRef(null);

  const question = useMemo(() => body && { ...body, options: { from_s: fromS } }, [body, fromS]);
  const drawn = usePart("timeline", question, language);
  const view = drawn.answer;
  const measuredQuestion = useMemo(() => trace && { ...(body ?? {}), trace: trace.text, ...(trace.step === null ? {} : { step: trace.step }) }, [trace, body]);
  const readTrace = (sent, signal) => runAlone(() => postJson("timeline/measured", sent, language, signal), signal);
  const measured = useAsked(measuredQuestion, readTrace, { also: [language] });
  const beside = trace && measured.asked?.trace === trace.text ? measured.answer : null;

  const openMicro = (number) => change({ micro: number === null ? null : String(number) }, { step: false });
  const setZoom = (range) => change({ zoom: range ? range.map((at) => at.toPrecision(7)).join("-") : null }, { step: false });
  const old = stale || drawn.asked !== question;
  return html`
    <div class=${`answers timeline${old && !drawn.busy ? " stale" : ""}`} data-place="timeline" aria-busy=${drawn.busy}>
      <h2 class="visually-hidden">${t("places.timeline")}</h2>
      <${Refusal} notices=${drawn.notices.length ? drawn.notices : view ? [] : [...planNotices, ...unanswered]} />
      ${!view && !beside && html`<p class="empty">${busy || drawn.busy ? t("timeline.drawing") : t("timeline.empty")}</p>`}
      ${view && html`<${Summary} view=${view} />`}
      ${(view || beside) && html`
        <${Drawing} view=${view} measured=${beside} body=${body} micro=${micro} openMicro=${openMicro} zoom=${zoom} setZoom=${setZoom} setFromS=${setFromS} chart=${chart} />`}
      ${micro !== null && body && html`<${MicroBatch} number=${micro} body=${body} view=${view} open=${openMicro} />`}
      ${view && html`
        <div class="timeline-tables">
          <${Phases} view=${view} zoomTo=${setZoom} />
          <${Totals} view=${view} />
        </div>`}
      <${MeasuredTrace} trace=${trace} setTrace=${setTrace} measured=${beside} notices=${trace ? measured.notices : []} busy=${Boolean(trace) && measured.busy} />
      ${beside?.difference && html`<${Differences} difference=${beside.difference} />`}
    </div>`;
}

/** "1.5-20" as [1.5, 20]; null: nothing of the kind. @returns {[number, number] | null} */
function rangeOf(text) {
  const [start, end] = (text ?? "").split(/(?<=\d)-/).map(Number);
  return Number.isFinite(start) && Number.isFinite(end) && end > start && start >= 0 ? [start, end] : null;
}
