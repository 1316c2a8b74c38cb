// A task while it is looked at: told by events, asked for again only while it is live.
import { useCallback, useEffect, useRef, useState } from "../lib/dom.js";
import { fetchJson } from "../lib/api.js";

export const LIVE = ["initializing", "preflight", "queued", "running", "stopping"];
export const RESUMABLE = ["failed", "stopped", "interrupted"];
const PAUSE_MS = 2000;
/** Events that come together are one reason to look. */
const SOON_MS = 150;

/** Calls `work` now and then while `wanted`, and never while the page is hidden. @param {() => Promise<any>} work @param {boolean} wanted */
export function useEvery(work, wanted, pause = PAUSE_MS) {
  const latest = useRef(work);
  latest.current = work;
  useEffect(() => {
    if (!wanted) return undefined;
    let timer = 0;
    let ended = false;
    const next = () => {
      timer = setTimeout(async () => {
        if (!document.hidden) await latest.current();
        if (!ended) next();
      }, pause);
    };
    next();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [wanted, pause]);
}

/**
 * @typedef {object} LiveTask
 * @property {any} task null until it is there
 * @property {any[]} events oldest first
 * @property {any[]} rows of its metrics
 * @property {any} twin null: there is nothing to compare yet
 * @property {boolean} live
 * @property {import("../lib/api.js").Notice[]} notices why it cannot be shown
 * @property {boolean} failed
 * @property {() => Promise<void>} reload
 */

/** @param {string} id @param {string} language @returns {LiveTask} */
export function useTask(id, language) {
  const [state, setState] = useState({ task: null, events: [], rows: [], twin: null, notices: [], failed: false });
  const path = `training-tasks/${encodeURIComponent(id)}`;
  const last = useRef({ start: "", step: -1 });
  const put = (changes) => setState((old) => ({ ...old, ...(typeof changes === "function" ? changes(old) : changes) }));
  const reload = useCallback(async () => {
    let task;
    try {
      task = await fetchJson(path, language);
      put({ task, notices: [], failed: false });
    } catch (error) {
      put({ notices: error.notices ?? [], failed: !error.notices?.length });
      return;
    }
    try {
      const start = `${task.attempt}.${task.restarts}`;
      if (last.current.start !== start) last.current = { start, step: -1 }; // what comes after a checkpoint is done again
      const after = last.current.step;
      const { rows } = await fetchJson(`${path}/metrics?after=${after}`, language);
      if (rows.length) {
        last.current.step = rows.at(-1).step;
        put((old) => ({ rows: after < 0 ? rows : [...old.rows.filter((row) => row.step <= after), ...rows] }));
        put({ twin: await fetchJson(`${path}/twin`, language) });
      }
    } catch {
      // nothing was measured yet, or its machine does not answer now: the state says so
    }
  }, [path, language]);
  const live = LIVE.includes(state.task?.state);
  useEffect(() => {
    last.current = { start: "", step: -1 };
    setState({ task: null, events: [], rows: [], twin: null, notices: [], failed: false });
    reload();
  }, [reload]);
  useEffect(() => void (!live && state.task && reload()), [live]); // the last steps
  useEvery(reload, live);
  const timer = useRef(0);
  const soon = () => {
    clearTimeout(timer.current);
    timer.current = setTimeout(reload, SOON_MS);
  };
  useEffect(() => () => clearTimeout(timer.current), [reload]);
  useEvents(path, language, Boolean(state.task), live, (event) => {
    if ("progress" in event) return put((old) => ({ task: { ...old.task, ...event } }));
    put((old) => (old.events.some((one) => one.number === event.number) ? {} : { events: [...old.events, event] }));
    return event.old ? undefined : soon();
  });
  return { ...state, live, reload };
}

/** Events: all there are, then each as it happens. */
function useEvents(path, language, ready, live, tell) {
  const latest = useRef(tell);
  latest.current = tell;
  useEffect(() => {
    if (!ready) return undefined;
    let wanted = true;
    if (!live) {
      fetchJson(`${path}/events?limit=2000`, language).then((page) => wanted && page.entries.forEach((event) => latest.current({ ...event, old: true })), () => {});
      return () => (wanted = false);
    }
    const source = new EventSource(`/api/v1/${path}/events?lang=${language}`);
    const read = (event) => latest.current(JSON.parse(event.data));
    source.addEventListener("event", read);
    source.addEventListener("task", read);
    source.addEventListener("end", (event) => {
      source.close();
      read(event);
    });
    return () => source.close();
  }, [path, language, ready, live]);
}
