// The same bundle for the command line.
import { heredoc, quoted } from "../scenario/command.js";

/**
 * @param {{file: string | null, text: string, framework: string | null, launcher: string, template: boolean, given: [string, string][]}} asked
 *   file: a scenario that gives this plan by itself; null: `text`, the plan, is put in
 */
export function deployCommand({ file, text, framework, launcher, template, given }) {
  const words = [
    ...(framework ? ["--framework", framework] : []),
    ...(launcher === "nodes" ? [] : ["--launcher", launcher]),
    ...given.flatMap(([name, value]) => ["--set", `${name}=${value}`]),
    ...(template ? ["--template"] : []),
    "-o",
    "bundle",
  ];
  const line = `crosszone deploy ${file ? quoted(file) : "-"} ${words.map(quoted).join(" ")}`;
  return file ? `${line}\n` : heredoc(line, text);
}
