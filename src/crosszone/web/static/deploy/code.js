import { html, useMemo } from "../lib/dom.js";
import { languageOf, pieces } from "../lib/highlight.js";

/** A text with line numbers and the colours of its language. @param {{path: string, text: string}} given */
export function Code({ path, text }) {
  const body = useMemo(() => {
    const whole = text.replace(/\n$/, "");
    return {
      numbers: Array.from({ length: whole.split("\n").length }, (_, at) => at + 1).join("\n"),
      coloured: pieces(whole, languageOf(path)).map(([kind, part]) => (kind ? html`<span class=${`token-${kind}`}>${part}</span>` : part)),
    };
  }, [path, text]);
  return html`
    <div class="deploy-code" role="group" aria-label=${path} tabindex="0">
      <pre class="deploy-numbers" aria-hidden="true">${body.numbers}</pre>
      <pre class="deploy-text">${body.coloured}</pre>
    </div>`;
}
