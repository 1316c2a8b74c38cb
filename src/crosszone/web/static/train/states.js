import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useWords } from "./words.js";

const WAY = ["initializing", "preflight", "queued", "running"];
const ENDS = ["succeeded", "failed", "stopped", "interrupted"];

/** The states a task goes through in this attempt: when it came to each, and where it is. @param {{task: any, events: any[]}} given */
export function Timeline({ task, events }) {
  const { t } = useText();
  const words = useWords();
  const begun = events.findLastIndex((event) => event.kind === "resume" || event.kind === "created");
  const came = new Map();
  for (const event of events.slice(Math.max(0, begun))) if (!came.has(event.state) || event.kind === "restart") came.set(event.state, event.at);
  const end = ENDS.includes(task.state) ? task.state : task.state === "stopping" || task.stop_asked ? "stopped" : "succeeded";
  const way = [...WAY.filter((state) => came.has(state) || !ENDS.includes(task.state)), ...(came.has("stopping") ? ["stopping"] : []), end];
  return html`
    <ol class="train-states" aria-label=${t("train.states")}>
      ${way.map((state) => html`
        <li key=${state} class=${`${state} ${state === task.state ? "now" : came.has(state) ? "passed" : "ahead"}`} aria-current=${state === task.state ? "step" : null}>
          <span>${t(`train.state.${state}`)}</span>
          ${came.has(state) && html`<time datetime=${came.get(state)}>${words.clock(came.get(state))}</time>`}
        </li>`)}
    </ol>`;
}
