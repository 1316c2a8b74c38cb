import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { Figure } from "../components/figure.js";

/** The step in five figures: its time, how busy the stages are, bubbles, exposed communication, micro-batches. @param {{view: any}} given */
export function Summary({ view }) {
  const { t, framework, percent, amount } = useText();
  const { time } = useTime();
  const { step, utilisation, idle, exposed } = view.summary;
  const tiles = [
    ["step", html`<${Figure} path="step_time_s">${time(step.seconds)}<//>`, framework(view.framework)],
    ["utilisation", html`<${Figure} path="timeline.summary.utilisation">${percent(utilisation)}<//>`, t("timeline.summary.utilisation_below")],
    ["bubble", html`<${Figure} path="timeline.totals.idle.share">${percent(idle.share)}<//>`, t("timeline.summary.bubble_below", { time: time(idle.seconds) })],
    ["exposed", html`<${Figure} path="timeline.summary.exposed">${percent(exposed.share)}<//>`, t("timeline.summary.exposed_below", { time: time(exposed.seconds) })],
    ["micro_batches", html`<${Figure} path="micro_batches">${amount(view.micro_batches)}<//>`, t("timeline.summary.spans_below", { count: amount(view.window.spans) })],
  ];
  return html`
    <dl class="strip" aria-label=${t("timeline.summary.heading")}>
      ${tiles.map(([key, value, below]) => html`
        <div class="tile" key=${key} data-tile=${key}><dt>${t(`timeline.summary.${key}`)}</dt><dd>${value}</dd><dd class="below">${below}</dd></div>`)}
    </dl>`;
}
