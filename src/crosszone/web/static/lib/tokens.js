// The theme's colours for charts, which cannot read CSS variables.
import { useEffect, useState } from "./dom.js";

/** @typedef {Record<string, string>} Tokens `tokens.accent` is `--accent` */

function read() {
  const style = getComputedStyle(document.documentElement);
  // by rule, not by file: stylesheets are joined into one when they are served
  const names = [...document.styleSheets]
    .flatMap((sheet) => [...sheet.cssRules])
    .flatMap((rule) => (rule instanceof CSSStyleRule && rule.selectorText.startsWith(":root") ? [...rule.style] : []))
    .filter((name) => name.startsWith("--"));
  return Object.fromEntries(names.map((name) => [name.slice(2), style.getPropertyValue(name).trim()]));
}

/** @returns {Tokens} the colours of the present theme; a new object when the theme changes */
export function useTokens() {
  const [tokens, setTokens] = useState(read);
  useEffect(() => {
    const watcher = new MutationObserver(() => setTokens(read()));
    watcher.observe(document.documentElement, { attributeFilter: ["data-theme"] });
    return () => watcher.disconnect();
  }, []);
  return tokens;
}
