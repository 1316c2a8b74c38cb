// Numbers as people type them: 4096, 0.5, 1e12.

/** @param {unknown} value */
export function numberText(value) {
  if (value === undefined || value === null) return "";
  if (typeof value !== "number") return typeof value === "string" ? value : JSON.stringify(value);
  const exponent = Math.abs(value) >= 1e7 ? value.toExponential().replace("e+", "e") : "";
  return exponent && exponent.length <= 7 ? exponent : String(value);
}

/** The number typed; what is no number stays as it is, and the server says so. Empty: undefined. @param {string} text */
export function typedNumber(text) {
  const bare = text.trim().replace(/(?<=\d)[,_\s](?=\d{3}\b)/g, "");
  if (!bare) return undefined;
  const number = Number(bare);
  return Number.isFinite(number) ? number : text;
}
