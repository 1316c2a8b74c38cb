// Colours for code: [kind or null, text] pieces that join to the whole text. Nothing here knows of the page.
import { pieces as yamlPieces } from "./yaml.js";

/** A larger text is shown without colours: they would take longer than anyone waits. */
const MOST = 200_000;

const PYTHON_WORDS =
  "and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield|True|False|None";
const SHELL_WORDS =
  "if|then|elif|else|fi|for|while|until|do|done|case|esac|in|function|select|exec|export|local|readonly|return|exit|trap|set|cd|source|wait|shift|unset";

/** The parts of each language, the first that fits wins: kind and what it looks like. @type {Record<string, [string, RegExp][]>} */
const LANGUAGES = {
  python: [
    ["text", /[rbfRBF]{0,2}(?:"""[\s\S]*?(?:"""|(?![\s\S]))|'''[\s\S]*?(?:'''|(?![\s\S]))|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')/],
    ["comment", /#.*/],
    ["key", /(?<=\b(?:def|class) +)\w+|@[\w.]+/],
    ["word", new RegExp(`\\b(?:${PYTHON_WORDS})\\b`)],
    ["number", /(?<![\w.])\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?\b/],
  ],
  shell: [
    ["comment", /(?<=^|\s)#.*/m],
    ["text", /"(?:[^"\\]|\\[\s\S])*"|'[^']*'/],
    ["number", /\$\{[^}\n]*\}|\$(?:\w+|[@#?!*-])|(?<![\w.-])\d+(?![\w.-])/],
    ["key", /(?<=^|\s)--?[A-Za-z][\w-]*|(?<=^|\s)[A-Za-z_]\w*(?==)/m],
    ["word", new RegExp(`(?<=^|[\\s;&|(])(?:${SHELL_WORDS})(?=$|[\\s;&|)])`, "m")],
  ],
  json: [
    ["key", /"(?:[^"\\\n]|\\.)*"(?=\s*:)/],
    ["text", /"(?:[^"\\\n]|\\.)*"/],
    ["number", /-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/],
    ["word", /\b(?:true|false|null)\b/],
  ],
  markdown: [
    ["text", /^```[\s\S]*?^```|`[^`\n]+`/m],
    ["key", /^#{1,6} .*$|\*\*[^*\n]+\*\*/m],
    ["word", /^ *(?:[-*]|\d+\.)(?= )/m],
    ["number", /\[[^\]\n]*\]\([^)\n]*\)/],
  ],
};
const ENDINGS = { py: "python", sh: "shell", sbatch: "shell", args: "shell", json: "json", md: "markdown", yaml: "yaml", yml: "yaml" };

/** The language of a file by its name; null: plain text. @param {string} path @returns {string | null} */
export const languageOf = (path) => ENDINGS[path.split(".").at(-1)] ?? null;

/** @param {string} text @param {string | null} language @returns {[string | null, string][]} */
export function pieces(text, language) {
  if (text.length > MOST) return [[null, text]];
  if (language === "yaml") return text.split(/(?<=\n)/).flatMap(yamlLine);
  const parts = LANGUAGES[language];
  if (!parts) return [[null, text]];
  const whole = new RegExp(parts.map(([, form]) => `(${form.source})`).join("|"), "gm");
  /** @type {[string | null, string][]} */
  const found = [];
  let end = 0;
  for (const match of text.matchAll(whole)) {
    if (!match[0]) continue;
    if (match.index > end) found.push([null, text.slice(end, match.index)]);
    found.push([parts[match.slice(1).findIndex((group) => group !== undefined)][0], match[0]]);
    end = match.index + match[0].length;
  }
  if (end < text.length) found.push([null, text.slice(end)]);
  return found;
}

/** @param {string} line with its end @returns {[string | null, string][]} */
function yamlLine(line) {
  const bare = line.replace(/\n$/, "");
  /** @type {any} */
  const found = yamlPieces(bare);
  return bare === line ? found : [...found, [null, "\n"]];
}
