// The state that a link carries: which place, which scenario, what is chosen there, language and theme. An edited scenario
// itself stands after the # (link.js).
import { useCallback, useEffect, useState } from "./dom.js";

const KEYS = [
  "place", "example", "objective", "plan", "moved", "step", "tab", "zoom", "micro", "x", "y", "results", "framework", "launcher", "template", "bundle", "file", "nodes", "master", "task", "kind", "filter", "entry", "lang", "theme",
  "debug", // any value: the server sends the source files as they stand
];

/** @typedef {Record<string, string | null>} Address */

function read() {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(KEYS.map((key) => [key, query.get(key)]));
}

function addressOf(state, hash = location.hash) {
  const query = new URLSearchParams();
  for (const key of KEYS) if (state[key]) query.set(key, state[key]);
  const text = query.toString();
  return (text ? `?${text}` : location.pathname) + hash;
}

/**
 * [state, change]: `change({place: "catalogue"})` makes a step Back can undo; `change(..., {step: false})` does not.
 * @returns {[Address, (changes: Address, how?: {step?: boolean, hash?: string}) => void]}
 */
export function useAddress() {
  const [state, setState] = useState(read);
  useEffect(() => {
    const follow = () => setState(read());
    addEventListener("popstate", follow);
    return () => removeEventListener("popstate", follow);
  }, []);
  const change = useCallback((changes, { step = true, hash = location.hash } = {}) => {
    const next = { ...read(), ...changes };
    history[step ? "pushState" : "replaceState"](null, "", addressOf(next, hash));
    setState(next);
  }, []);
  return [state, change];
}

/** The address of the page with some of its state changed, for links. @param {Address} changes */
export const linkTo = (changes) => addressOf({ ...read(), ...changes });

/** @param {string} key @param {string} value */
export function keep(key, value) {
  try {
    localStorage.setItem(`crosszone.${key}`, value);
  } catch {
    // storage may be forbidden; the address still carries it
  }
}

/** @param {string} key @returns {string | null} */
export function kept(key) {
  try {
    return localStorage.getItem(`crosszone.${key}`);
  } catch {
    return null;
  }
}
