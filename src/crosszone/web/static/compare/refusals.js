import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/** What to know or what went wrong, and what to do about it. @param {{notices: readonly import("../lib/api.js").Notice[], failed?: boolean}} given */
export function Refusals({ notices, failed = false }) {
  const { t } = useText();
  if (!notices.length && !failed) return null;
  return html`
    <ul class="compare-notices" role="alert">
      ${failed && html`<li class="error">${t("failed")}</li>`}
      ${notices.slice(0, 5).map((notice) => html`<li class=${notice.level}><strong>${notice.message}</strong> <span class="hint">${notice.hint}</span></li>`)}
    </ul>`;
}
