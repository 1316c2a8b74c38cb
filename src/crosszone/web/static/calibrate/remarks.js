import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { More } from "../components/more.js";

/** What was left out of a file, and what to bear in mind. @param {{notices: import("../lib/api.js").Notice[]}} given */
export function Remarks({ notices }) {
  const { t, amount } = useText();
  if (!notices.length) return null;
  const warns = notices.some((notice) => notice.level !== "note");
  return html`
    <details class=${`notices ${warns ? "warning" : "note"}`} open=${warns}>
      <summary><h3>${t("calibrate.remarks", { count: amount(notices.length) })}</h3></summary>
      <ul><${More} most=${5} items=${notices} row=${(notice, at) => html`<li key=${at}>${notice.message} <span class="hint">${notice.hint}</span></li>`} /></ul>
    </details>`;
}
