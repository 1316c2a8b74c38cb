// Questions to the server that follow the user's changes: the latest wins, the last good answer stays.
import { useEffect, useRef, useState } from "./dom.js";

/**
 * `{answer, notices, failed, busy, asked}`: the last good answer and what it was asked with; why the present question has none.
 * @template T
 * @param {T | null} question null: nothing to ask yet
 * @param {(question: T, signal: AbortSignal) => Promise<any>} ask
 * @param {{pause?: number, also?: unknown[]}} [how] milliseconds to wait for the next change; what else makes it a new question
 */
export function useAsked(question, ask, { pause = 0, also = [] } = {}) {
  const [state, setState] = useState({ answer: null, asked: null, notices: [], failed: false, busy: true, number: 0 });
  const first = useRef(true);
  const last = useRef(0);
  const mounted = useRef(true);
  useEffect(() => () => void (mounted.current = false), []);
  useEffect(() => {
    if (question === null) {
      setState((old) => ({ ...old, busy: false }));
      return undefined;
    }
    const stop = new AbortController();
    const number = ++last.current;
    const settle = (changes) => setState((old) => (old.number > number ? old : { ...old, busy: old.busy && stop.signal.aborted, ...changes, number }));
    setState((old) => (old.busy ? old : { ...old, busy: true }));
    const begin = () =>
      ask(question, stop.signal).then(
        // an answer that was overtaken is shown until the newer one is there
        (answer) => mounted.current && settle({ answer, asked: question, notices: [], failed: false }),
        (error) => !stop.signal.aborted && error.name !== "AbortError" && settle({ notices: error.notices ?? [], failed: !error.notices?.length }),
      );
    const wait = first.current ? 0 : pause;
    first.current = false;
    const timer = wait ? setTimeout(begin, wait) : void begin();
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [question, ...also]);
  return state;
}
