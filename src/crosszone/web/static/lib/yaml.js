// Colours for YAML, one line at a time: [kind or null, text] pieces that join to the line.

const TOKEN = new RegExp(
  [
    /("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')/, // text
    /((?<=^|[\s,{[])[A-Za-z_][\w.-]*(?=\s*:(?:\s|$)))/, // key
    /((?<=^|\s)#.*$)/, // comment
    /((?<![\w.+-])[-+]?\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?(?![\w.-]))/, // number
    /(\b(?:true|false|null)\b)/, // word
  ].map((part) => part.source).join("|"),
  "g",
);
const KINDS = ["text", "key", "comment", "number", "word"];

export function pieces(line) {
  const found = [];
  let end = 0;
  for (const match of line.matchAll(TOKEN)) {
    if (match.index > end) found.push([null, line.slice(end, match.index)]);
    found.push([KINDS[match.slice(1).findIndex((group) => group !== undefined)], match[0]]);
    end = match.index + match[0].length;
  }
  if (end < line.length) found.push([null, line.slice(end)]);
  return found;
}
