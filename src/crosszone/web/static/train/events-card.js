import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { More } from "../components/more.js";
import { useWords } from "./words.js";

const CHECKS = ["reach", "clock", "disk", "software", "versions", "gpus", "data", "port", "link", "step"];
const KINDS = ["created", "state", "check", "node", "restart", "resume", "note"];

/** Everything that happened to a task, newest first. @param {{events: any[]}} given */
export function Events({ events }) {
  const { t, amount } = useText();
  const words = useWords();
  const newest = [...events].reverse();
  const told = (event) => {
    if (event.about.to) return t("train.came_to", { state: t(`train.state.${event.about.to}`) });
    if (CHECKS.includes(event.about.check)) return t("train.checked", { what: t(`train.check.${event.about.check}`), where: event.about.environments.join(", ") });
    return KINDS.includes(event.kind) ? t(`train.event.${event.kind}`) : event.kind;
  };
  return html`
    <${Card} id="train-events" title=${t("train.events")} aside=${t("train.events_count", { count: amount(events.length) })}>
      <ol class="train-events">
        <${More} most=${12} items=${newest} row=${(event) => html`
          <li key=${event.number} class=${event.kind}>
            <time datetime=${event.at}>${words.exactly(event.at)}</time>
            <span>${told(event)}${event.about.notice && html`<span class="below">${event.about.notice.message} ${event.about.notice.hint}</span>`}</span>
          </li>`} />
      </ol>
    <//>`;
}
