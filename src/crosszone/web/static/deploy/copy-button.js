import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { copyText } from "../lib/copy.js";
import { useText } from "../lib/text.js";

/** Milliseconds for which the button says that it was done. */
const SAID_MS = 2000;

/** Puts a text on the clipboard and says so. @param {{text: () => string, label: string, title?: string, disabled?: boolean, small?: boolean}} given */
export function CopyButton({ text, label, title = null, disabled = false, small = false }) {
  const { t } = useText();
  const [said, setSaid] = useState(null);
  const timer = useRef(0);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = async () => {
    setSaid((await copyText(text())) ? t("bar.copied") : t("bar.not_copied"));
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setSaid(null), SAID_MS);
  };
  return html`
    <button type="button" class=${small ? "small" : ""} title=${title} disabled=${disabled} onClick=${copy}>${label}</button>
    <span class="told" role="status">${said}</span>`;
}
