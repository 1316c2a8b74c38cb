import { html } from "../lib/dom.js";

/** A table that scrolls sideways inside its frame, reachable by keyboard. */
export function TableFrame({ label, children }) {
  return html`<div class="table-frame" role="group" aria-label=${label} tabindex="0"><table>${children}</table></div>`;
}
