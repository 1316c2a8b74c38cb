// A value with the values before it: undo and redo. Changes that follow each other closely and mean the same are one step.
import { useRef, useState } from "./dom.js";

/** Milliseconds within which changes of one thing (a slider drawn, a word typed) are one step. */
const TOGETHER_MS = 1000;
const MOST_STEPS = 100;

/**
 * @template T
 * @returns {{
 *   value: T | null, now: {current: T | null}, start: (value: T) => void, change: (value: T, what: string) => void, amend: (value: T) => void,
 *   undo: () => void, redo: () => void, canUndo: boolean, canRedo: boolean,
 * }} `start`: forget what was before; `amend`: no step of its own; `now.current`: the value, also before the next drawing
 */
export function useHistory() {
  const [value, setValue] = useState(null);
  const now = useRef(null);
  const steps = useRef({ past: [], future: [], what: null, at: 0 });
  const show = (next) => {
    now.current = next;
    setValue(next);
  };
  const move = (from, to) => {
    if (!from.length) return;
    to.push(now.current);
    steps.current.what = null;
    show(from.pop());
  };
  return {
    value,
    now,
    start: (next) => {
      steps.current = { past: [], future: [], what: null, at: 0 };
      show(next);
    },
    change: (next, what) => {
      const kept = steps.current;
      const together = kept.what === what && Date.now() - kept.at < TOGETHER_MS;
      if (!together) kept.past = [...kept.past, now.current].slice(-MOST_STEPS);
      Object.assign(kept, { future: [], what, at: Date.now() });
      show(next);
    },
    amend: show,
    undo: () => move(steps.current.past, steps.current.future),
    redo: () => move(steps.current.future, steps.current.past),
    canUndo: steps.current.past.length > 0,
    canRedo: steps.current.future.length > 0,
  };
}
