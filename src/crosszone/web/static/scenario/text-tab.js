import { html, useMemo, useRef } from "../lib/dom.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { Editor } from "../components/editor.js";
import { TextErrors } from "../components/text-errors.js";
import { noticesOf } from "./form.js";

const LEVELS = ["note", "warning", "error"];

/** The scenario as text; what the server says of it stands at its lines. */
export function TextTab() {
  const { t } = useText();
  const scenario = useScenario();
  const editor = useRef(null);
  const notices = noticesOf(scenario);
  const marks = useMemo(() => marksOf(notices), [notices]);
  const wrong = scenario.lost ? scenario.lost.notices : notices.filter((notice) => notice.level === "error");
  return html`
    <p class="text-about">${t("form.text_about")}</p>
    ${scenario.text !== null && html`<${Editor} handle=${editor} text=${scenario.text} onEdit=${scenario.setText} marks=${marks} />`}
    <${TextErrors} notices=${wrong} failed=${scenario.failed || scenario.lost?.status === 0} jump=${(line) => editor.current?.jump(line)} />`;
}

/** The worst level of each line of the text. */
function marksOf(notices) {
  const marks = new Map();
  for (const { file, line, level } of notices) {
    if (file === "<text>" && line && LEVELS.indexOf(level) > LEVELS.indexOf(marks.get(line))) marks.set(line, level);
  }
  return marks;
}
