// The answer to the text in the editor: asked for a moment after the last key, late answers dropped, the last good one kept.
import { useEffect, useRef, useState } from "./dom.js";
import { postJson } from "./api.js";

const PAUSE_MS = 150;

/** `{answer, notices, failed, busy}`: the last good answer; why the present text has none; the server is out of reach. */
export function useDescription(text, language) {
  const [state, setState] = useState({ answer: null, notices: [], failed: false, busy: true });
  const turn = useRef(0);
  useEffect(() => {
    if (text === null) return undefined;
    const mine = (turn.current += 1);
    const settle = (changes) => mine === turn.current && setState((old) => ({ ...old, busy: false, ...changes }));
    setState((old) => ({ ...old, busy: true }));
    const timer = setTimeout(
      () =>
        postJson("scenarios/describe", { text }, language).then(
          (answer) => settle({ answer, notices: [], failed: false }),
          (error) => settle({ notices: error.notices ?? [], failed: !error.notices?.length }),
        ),
      mine === 1 ? 0 : PAUSE_MS,
    );
    return () => clearTimeout(timer);
  }, [text, language]);
  return state;
}
