import { html, useRef } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/** A number as text with the exact one beside it; it lights up for a moment when what is shown changes. @param {{of: number | null, shown?: string}} given */
export function Value({ of, shown }) {
  const { amount } = useText();
  const text = shown ?? amount(of);
  const last = useRef(text);
  const turn = useRef(0);
  if (last.current !== text) {
    last.current = text;
    turn.current += 1;
  }
  return html`<data key=${turn.current} value=${of} class=${turn.current ? "changed" : ""}>${text}</data>`;
}
