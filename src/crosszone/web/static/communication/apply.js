// Changes written into the scenario: what was applied, and how to take it back.
import { html, useState } from "../lib/dom.js";
import { postJson } from "../lib/api.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { useWords } from "./words.js";

/**
 * @typedef {object} Applying
 * @property {(changes: Record<string, any>, title: string) => void} apply write fields into the scenario; null takes one out
 * @property {{title: string, changes: Record<string, any>, fields: any, notices: import("../lib/api.js").Notice[], failed: boolean} | null} done the last that was asked for
 * @property {() => void} undo take it back
 * @property {() => void} close say no more of it
 */

/** @returns {Applying} */
export function useApply() {
  const { language } = useText();
  const { body, setFields, undo } = useScenario();
  const [done, setDone] = useState(null);
  const apply = async (changes, title) => {
    try {
      const { fields } = await postJson("scenarios/change", { ...body, changes }, language);
      setFields(fields, `${title} ${Date.now()}`); // a step of its own, however soon it follows the last
      setDone({ title, changes, fields, notices: [], failed: false });
    } catch (error) {
      setDone({ title, changes, fields: null, notices: error.notices ?? [], failed: !error.notices?.length });
    }
  };
  const back = () => {
    undo();
    setDone(null);
  };
  return { apply, done, undo: back, close: () => setDone(null) };
}

/** What was applied last, in one line that stays in view. @param {{applying: Applying}} given */
export function Applied({ applying }) {
  const { t } = useText();
  const { fields } = useScenario();
  const { done, undo, close } = applying;
  const present = done !== null && JSON.stringify(fields) === JSON.stringify(done.fields);
  return html`
    <div class="applied-place" role="status">
      ${done && html`
        <div class=${`applied ${done.fields ? "" : "refused"}`} data-applied=${done.fields ? "yes" : "no"}>
          ${done.fields
            ? html`<p>${t("communication.applied", { title: done.title })} <${Changes} changes=${done.changes} /></p>`
            : html`<p>${t("communication.not_applied", { title: done.title })} ${done.failed ? t("failed") : done.notices.map((one) => `${one.message} ${one.hint}`).join(" ")}</p>`}
          <span class="grow"></span>
          ${present && html`<button type="button" onClick=${undo}>${t("communication.undo")}</button>`}
          <button type="button" class="quiet" onClick=${close}>${t("close")}</button>
        </div>`}
    </div>`;
}

/** Fields with their new values. */
function Changes({ changes }) {
  const { t } = useText();
  const { value } = useWords();
  return html`
    <span class="changes">
      ${Object.entries(changes).map(([path, next]) => html`
        <code key=${path}>${path}${next === null ? html` <em>${t("communication.let_go")}</em>` : typeof next === "object" ? "" : ` = ${value(next)}`}</code>`)}
    </span>`;
}
