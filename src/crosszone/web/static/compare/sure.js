import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/** A button that asks before it acts. @param {{label: string, question: string, act: () => Promise<void>, title?: string, small?: boolean}} given */
export function Sure({ label, question, act, title = label, small = false }) {
  const { t } = useText();
  const [asking, setAsking] = useState(false);
  const yes = useRef(null);
  const opener = useRef(null);
  useEffect(() => {
    if (asking) yes.current.focus();
  }, [asking]);
  const keep = () => {
    setAsking(false);
    requestAnimationFrame(() => opener.current?.focus());
  };
  if (!asking) {
    return html`<button type="button" class=${small ? "quiet small" : ""} ref=${opener} title=${title} aria-label=${title} onClick=${() => setAsking(true)}>${label}</button>`;
  }
  return html`
    <span class="compare-sure" role="group" aria-label=${question} onKeyDown=${(event) => event.key === "Escape" && keep()}>
      <span>${small ? t("compare.delete_short") : question}</span>
      <button type="button" class="danger small" ref=${yes} onClick=${() => (setAsking(false), act())}>${t("compare.delete")}</button>
      <button type="button" class="small" onClick=${keep}>${t("compare.keep")}</button>
    </span>`;
}
