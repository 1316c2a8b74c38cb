// Long work on demand: begun by a button, told while it is done, stopped by another; the last answer stays.
import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { streamJson } from "../lib/api.js";
import { useText } from "../lib/text.js";

/** What was answered last, by key: it outlives a visit to another place. */
const kept = new Map();

/**
 * @typedef {object} Long
 * @property {any} answer the last good one
 * @property {any} subject what it is about: the scenario's body it was asked with
 * @property {string | null} language of its sentences
 * @property {{what: string | null, done: number, of: number} | null} running how far it is; null: it is not
 * @property {import("../lib/api.js").Notice[]} notices why the last one has no answer
 * @property {boolean} failed the server is out of reach
 * @property {boolean} stopped the last one was stopped
 * @property {(body: any, subject: any) => void} start
 * @property {() => void} cancel
 */

const IDLE = { answer: null, subject: null, language: null, running: null, notices: [], failed: false, stopped: false };

/** @param {string} key @param {string} path of the API @returns {Long} */
export function useLong(key, path) {
  const { language } = useText();
  const [state, setState] = useState(kept.get(key) ?? IDLE);
  const stop = useRef(null);
  useEffect(() => () => stop.current?.abort(), []);

  const start = async (body, subject) => {
    stop.current?.abort();
    const own = new AbortController();
    stop.current = own;
    const settle = (changes) => {
      if (stop.current !== own) return;
      setState((old) => {
        const next = { ...old, ...changes };
        kept.set(key, { ...next, running: null });
        return next;
      });
    };
    settle({ running: { what: null, done: 0, of: 1 }, notices: [], failed: false, stopped: false });
    try {
      const answer = await streamJson(path, body, language, { onProgress: (running) => settle({ running }), signal: own.signal });
      settle({ answer, subject, language, running: null });
    } catch (error) {
      const stopped = own.signal.aborted;
      settle({ running: null, stopped, notices: stopped ? [] : (error.notices ?? []), failed: !stopped && !error.notices?.length });
    }
  };
  return { ...state, start, cancel: () => stop.current?.abort() };
}

/** The button that starts it, or how far it is with a button that stops it; then why there is no answer. @param {{long: Long, subject: any, begin: () => void, words: string, disabled?: boolean}} given */
export function LongControl({ long, subject, begin, words, disabled = false }) {
  const { t, label, amount, language } = useText();
  const { running, answer } = long;
  const old = answer !== null && (long.subject !== subject || long.language !== language);
  return html`
    <div class="long">
      ${running
        ? html`
          <button type="button" onClick=${long.cancel}>${t("communication.cancel")}</button>
          <progress max=${Math.max(running.of, 1)} value=${running.what ? running.done : undefined} aria-label=${words}></progress>
          <span class="quiet-text" role="status">
            ${running.what ? `${label(`progress_${running.what}`)} ${amount(running.done)} / ${amount(running.of)}` : t("communication.working")}
          </span>`
        : html`
          <button type="button" class=${answer && !old ? "" : "primary"} disabled=${disabled} onClick=${begin}>${words}</button>
          <span class="quiet-text" role="status">${long.stopped ? t("communication.stopped") : old ? t("communication.old") : ""}</span>`}
    </div>
    <${Refused} notices=${long.notices} failed=${long.failed} />`;
}

/** Why there is no answer. @param {{notices: import("../lib/api.js").Notice[], failed?: boolean}} given */
export function Refused({ notices, failed = false }) {
  const { t } = useText();
  if (!notices.length && !failed) return null;
  return html`
    <ul class="refusals" role="alert">
      ${failed && html`<li>${t("failed")}</li>`}
      ${notices.map((one) => html`<li key=${one.message}>${one.message} <span class="hint">${one.hint}</span></li>`)}
    </ul>`;
}

/** What to know: notes and warnings that come with an answer. @param {{notices: readonly {level: string, message: string, hint: string}[]}} given */
export function Told({ notices }) {
  if (!notices?.length) return null;
  return html`
    <ul class="remarks">
      ${notices.map((one) => html`<li key=${one.message} class=${`of-${one.level}`}>${one.message} <span class="hint">${one.hint}</span></li>`)}
    </ul>`;
}
