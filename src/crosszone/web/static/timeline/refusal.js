import { html } from "../lib/dom.js";

/** Why there is nothing to draw, and what to do about it. @param {{notices: import("../lib/api.js").Notice[]}} given */
export function Refusal({ notices }) {
  if (!notices.length) return null;
  return html`
    <ul class="timeline-notices" role="alert">
      ${notices.slice(0, 5).map((notice) => html`<li class=${notice.level}><strong>${notice.message}</strong> <span class="hint">${notice.hint}</span></li>`)}
    </ul>`;
}
