// The same question for the command line.

/** A word that a shell takes as it is. @param {string} word */
export const quoted = (word) => (/^[\w./:=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** A command with a text on its standard input. @param {string} command @param {string} text */
export function heredoc(command, text) {
  const lines = text.replace(/\n$/, "").split("\n");
  let end = "EOF";
  while (lines.includes(end)) end += "_";
  return [`${command} <<'${end}'`, ...lines, end, ""].join("\n");
}

/** The file of an example or of the scenario the server was started with. @param {string} name */
export const fileOf = (name) => (/\.(ya?ml|json)$/.test(name) ? name : `examples/${name}.yaml`);

/** @param {{name: string, edited: boolean, text: string, objective: string}} asked @returns {string} */
export function planCommand({ name, edited, text, objective }) {
  const how = objective === "time" ? "" : ` --objective ${objective}`;
  return edited ? heredoc(`crosszone plan -${how}`, text) : `crosszone plan ${quoted(fileOf(name))}${how}\n`;
}
