import { html, useEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { fetchJson, fetchText, segment } from "../lib/api.js";
import { useDescription } from "../lib/description.js";
import { dropDraft, readDraft, writeDraft } from "../lib/draft.js";
import { useText } from "../lib/text.js";
import { Answers } from "./answers.js";
import { Editor } from "./editor.js";
import { ScenarioBar } from "./scenario-bar.js";
import { TextErrors } from "./text-errors.js";

const LEVELS = ["note", "warning", "error"];

/** The scenario as text, and what follows from it. */
export function ScenarioPlace({ address, change }) {
  const { t, language } = useText();
  const [shelf, setShelf] = useState({ default: null, examples: [] });
  const [opened, setOpened] = useState({ name: null, text: null });
  const [text, setText] = useState(null);
  const [lost, setLost] = useState(null);
  const editor = useRef(null);
  const latest = useRef(null);
  const { answer, notices, failed, busy } = useDescription(text, language);

  useEffect(() => {
    fetchJson("examples", language).then(setShelf, setLost);
  }, []);

  const load = (name) => {
    latest.current = name;
    fetchText(`examples/${segment(name)}`, language).then(
      (original) => latest.current === name && open(name, original),
      (error) => latest.current === name && setLost(error),
    );
  };
  const open = (name, original) => {
    const draft = readDraft();
    setOpened({ name, text: original });
    setText(draft?.name === name ? draft.text : original);
    setLost(null);
  };

  const wanted = address.example ?? shelf.default;
  useEffect(() => {
    const imported = address.example ? null : importedDraft();
    if (imported) open(imported.name, null);
    else if (wanted && wanted !== latest.current) load(wanted);
  }, [wanted, address.example]);

  const edit = (next) => {
    setText(next);
    if (next === opened.text) dropDraft();
    else writeDraft(opened.name, next);
  };
  const importText = (name, next) => {
    latest.current = `file:${name}`;
    writeDraft(latest.current, next);
    open(latest.current, null);
    setText(next);
    change({ example: null });
  };
  const reset = () => {
    dropDraft();
    setText(opened.text);
  };
  const choose = (name) => {
    dropDraft();
    load(name);
    change({ example: name });
  };

  const lineOf = (notice) => (notice.file === "<text>" ? notice.line : null);
  const marks = useMemo(() => marksOf(notices.length ? notices : (answer?.notices ?? []), lineOf), [answer, notices]);
  const jump = (line) => editor.current?.jump(line);

  return html`
    <div class="scenario">
      <section class="pane source" aria-labelledby="source-heading">
        <h2 id="source-heading" class="visually-hidden">${t("source.heading")}</h2>
        <${ScenarioBar} shelf=${shelf} name=${opened.name} edited=${opened.text !== null && text !== opened.text} text=${text}
          choose=${choose} importText=${importText} reset=${reset} />
        ${text !== null && html`<${Editor} handle=${editor} text=${text} onEdit=${edit} marks=${marks} />`}
        <${TextErrors} notices=${lost ? lost.notices : notices} failed=${failed || (lost !== null && lost.status === 0)}
          jump=${jump} />
      </section>
      <${Answers} answer=${answer} stale=${notices.length > 0 || failed} busy=${busy} lineOf=${lineOf} jump=${jump} />
    </div>`;
}

/** The file that was imported in this tab before a reload, if any. */
function importedDraft() {
  const draft = readDraft();
  return draft?.name?.startsWith("file:") ? draft : null;
}

/** The worst level of each line. */
function marksOf(notices, lineOf) {
  const marks = new Map();
  for (const notice of notices) {
    const line = lineOf(notice);
    const worse = LEVELS.indexOf(notice.level) > LEVELS.indexOf(marks.get(line));
    if (line && worse) marks.set(line, notice.level);
  }
  return marks;
}
