import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/** Where a figure comes from. */
export function Origin({ origin, source }) {
  const { label } = useText();
  const cited = origin === "published" && source ? [].concat(source).join(", ") : null;
  return html`<span class=${`origin ${origin.replace(" ", "-")}`} title=${cited}>${label(`origin_${origin}`)}</span>`;
}
