// The state that a link carries: which place, which scenario, what is filtered, language and theme.
import { useCallback, useEffect, useState } from "./dom.js";

const KEYS = ["place", "example", "kind", "filter", "entry", "lang", "theme"];

function read() {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(KEYS.map((key) => [key, query.get(key)]));
}

function addressOf(state) {
  const query = new URLSearchParams();
  for (const key of KEYS) if (state[key]) query.set(key, state[key]);
  const text = query.toString();
  return text ? `?${text}` : location.pathname;
}

/** [state, change]: `change({place: "catalogue"})` makes a step Back can undo; `change(..., {step: false})` does not. */
export function useAddress() {
  const [state, setState] = useState(read);
  useEffect(() => {
    const follow = () => setState(read());
    addEventListener("popstate", follow);
    return () => removeEventListener("popstate", follow);
  }, []);
  const change = useCallback((changes, { step = true } = {}) => {
    const next = { ...read(), ...changes };
    history[step ? "pushState" : "replaceState"](null, "", addressOf(next));
    setState(next);
  }, []);
  return [state, change];
}

/** The address of the page with some of its state changed, for links. */
export const linkTo = (changes) => addressOf({ ...read(), ...changes });

export function keep(key, value) {
  try {
    localStorage.setItem(`crosszone.${key}`, value);
  } catch {
    // storage may be forbidden; the address still carries it
  }
}

export function kept(key) {
  try {
    return localStorage.getItem(`crosszone.${key}`);
  } catch {
    return null;
  }
}
