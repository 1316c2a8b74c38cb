import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "./card.js";
import { More } from "./more.js";

const LEVELS = ["error", "warning", "note"];

/** What to know about the scenario, worst first; each leads to its line. */
export function Notices({ notices, lineOf, jump }) {
  const { t } = useText();
  const groups = LEVELS.map((level) => [level, notices.filter((notice) => notice.level === level)]);
  if (!notices.length) return null;
  return html`
    <${Card} id="notices" title=${t("notices.heading")} aside=${t("notices.about")}>
      ${groups.map(
        ([level, group]) =>
          group.length > 0 && html`
            <details class=${`notices ${level}`} open=${level !== "note" || group.length <= 4} key=${level}>
              <summary><h3>${t(`notices.${level}`, { count: group.length })}</h3></summary>
              <ul><${More} most=${8} items=${group} row=${(notice) => html`
                <${Notice} notice=${notice} line=${lineOf(notice)} jump=${jump} />`} /></ul>
            </details>`,
      )}
    <//>`;
}

function Notice({ notice, line, jump }) {
  const { t } = useText();
  return html`
    <li>
      <p>${notice.message} <span class="hint">${notice.hint}</span></p>
      <p class="where">
        ${notice.field && html`<code>${notice.field}</code>`}
        ${line && (jump ? html`<button type="button" class="link" onClick=${() => jump(line)}>${t("line", { line })}</button>` : t("line", { line }))}
      </p>
    </li>`;
}
