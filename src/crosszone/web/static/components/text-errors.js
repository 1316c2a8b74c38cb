import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { More } from "./more.js";

/** Why the text has no answer, beside the text. */
export function TextErrors({ notices, failed, jump }) {
  const { t } = useText();
  return html`
    <div id="text-errors" role="alert">
      ${failed && html`<p class="text-error">${t("failed")}</p>`}
      ${notices.length > 0 && html`
        <ul class="text-errors">
          <${More} most=${12} items=${notices} row=${(notice) => html`
            <li class="text-error">
              ${notice.line && html`
                <button type="button" class="link" onClick=${() => jump(notice.line)}>${t("line", { line: notice.line })}</button>`}
              <span>${notice.message} <span class="hint">${notice.hint}</span></span>
            </li>`} />
        </ul>`}
    </div>`;
}
