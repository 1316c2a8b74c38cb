import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/** The state of a task. @param {{state: string, stopping?: boolean}} given */
export function TaskState({ state, stopping = false }) {
  const { t } = useText();
  const shown = stopping && state !== "stopping" && state === "running" ? "stopping" : state;
  return html`<span class=${`train-badge state ${shown}`} data-state=${state}>${t(`train.state.${shown}`)}</span>`;
}
