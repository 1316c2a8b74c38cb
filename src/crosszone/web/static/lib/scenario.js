// The scenario being edited: where it came from, its fields, its text, and what the server says of it.
import { createContext, useContext, useEffect, useMemo, useRef, useState } from "./dom.js";
import { fetchJson, fetchText, postJson, segment } from "./api.js";
import { useAsked } from "./asked.js";
import { dropDraft, readDraft, writeDraft } from "./draft.js";
import { pathText, withField } from "./fields.js";
import { useHistory } from "./history.js";
import { packed, unpacked } from "./link.js";
import { askPart, usePart } from "./requests.js";

/** Milliseconds after the last change until the address carries it. */
const LINK_PAUSE_MS = 300;
const EMPTY = { default: null, examples: [] };
const SAVED = "saved:";

/**
 * @typedef {object} ScenarioState
 * @property {{default: string | null, examples: {name: string, title: string, opened: boolean}[]}} shelf scenarios that can be opened
 * @property {{id: string, name: string}[]} saved scenarios that were saved, the newest first
 * @property {() => void} listSaved look again what is saved
 * @property {string | null} name name of the example, `file:NAME` for an imported file, `saved:ID` for a saved one
 * @property {any} fields the scenario as it was given, as plain values; null until there is one
 * @property {boolean} readable `fields` is what the text says; false: the text is no YAML
 * @property {string | null} text the same as YAML; as typed, or written by the server, which keeps its comments
 * @property {() => Promise<string>} writtenText the text as it is now, also right after a change of fields
 * @property {{text: string} | {scenario: any} | null} body what requests send
 * @property {boolean} edited it differs from what was opened
 * @property {any} description what follows from it (/scenarios/describe), the last good one
 * @property {import("./api.js").Notice[]} notices why the present one cannot be read; empty: it can
 * @property {boolean} failed the server is out of reach
 * @property {boolean} busy an answer is on its way
 * @property {import("./api.js").ApiError | null} lost why an example could not be opened
 * @property {(path: import("./fields.js").Path, value: unknown) => void} setField set one field; undefined removes it
 * @property {(fields: any, what?: string) => void} setFields set all of them; changes of the same `what` that follow closely are undone as one
 * @property {(text: string) => void} setText set the text
 * @property {(name: string) => void} choose open an example or, as `saved:ID`, a saved scenario
 * @property {(name: string, text: string) => void} importText open a text
 * @property {(name: string, text: string) => void} tookName what is shown was saved as `saved:ID` with this text
 * @property {() => void} reset undo all edits
 * @property {boolean} canReset what was opened is known
 * @property {() => void} undo undo one change
 * @property {() => void} redo do it again
 * @property {boolean} canUndo
 * @property {boolean} canRedo
 */

export const ScenarioContext = createContext(null);

/** @returns {ScenarioState} */
export const useScenario = () => useContext(ScenarioContext);

/** @param {string} name @param {string} language @returns {Promise<string>} the text of an example or a saved scenario */
const originalOf = (name, language) =>
  name.startsWith(SAVED)
    ? fetchJson(`scenarios/${segment(name.slice(SAVED.length))}`, language).then((saved) => saved.text)
    : fetchText(`examples/${segment(name)}`, language);

/** @param {import("./address.js").Address} address @param {(changes: any, how?: any) => void} change @param {string} language @returns {ScenarioState} */
export function useScenarioState(address, change, language) {
  const [shelf, setShelf] = useState(EMPTY);
  const [saved, setSaved] = useState([]);
  const [opened, setOpened] = useState({ name: null, text: null });
  const [lost, setLost] = useState(null);
  const history = useHistory();
  const draft = history.value;
  /** What was opened last: its name, and the part of the address after # that stands for it. */
  const latest = useRef({ name: null, hash: "" });

  const listSaved = () => void fetchJson("scenarios", language).then((page) => setSaved(page.rows), () => setSaved([]));
  useEffect(() => {
    fetchJson("examples", language).then(setShelf, setLost);
    listSaved();
  }, []);

  const take = (next, original) => {
    setOpened({ name: next.name, text: original });
    history.start(next);
    setLost(null);
  };
  const load = (name) => {
    latest.current = { name, hash: "" };
    originalOf(name, language).then(
      (text) => {
        if (latest.current.name !== name) return;
        const kept = readDraft();
        take(kept?.name === name ? kept : { name, text, fields: null, base: null }, text);
      },
      (error) => latest.current.name === name && setLost(error),
    );
  };
  /** Show what a link holds; what it was made from is opened behind it, for its comments and to undo all edits. */
  const follow = (linked, kept) => {
    const { name } = linked;
    take(kept ?? { name, text: null, fields: linked.fields, base: null }, null);
    if (name.startsWith("file:")) return;
    originalOf(name, language).then(
      (text) => {
        if (latest.current.name !== name) return;
        setOpened({ name, text });
        const now = history.now.current;
        if (now.text === null && now.base === null) history.amend({ ...now, base: text });
      },
      () => {},
    );
  };

  const wanted = address.example ?? shelf.default;
  const find = async () => {
    const { hash } = location;
    const first = latest.current.name === null;
    if (hash.startsWith("#s=")) {
      if (hash === latest.current.hash) return;
      const before = latest.current;
      latest.current = { name: "", hash };
      const linked = await unpacked(hash);
      if (linked) {
        const kept = readDraft();
        latest.current = { name: linked.name, hash };
        follow(linked, kept?.link === hash && kept.name === linked.name ? kept : null);
        return;
      }
      latest.current = before;
    }
    const kept = first && !address.example ? readDraft() : null;
    if (kept?.name.includes(":")) {
      latest.current = { name: kept.name, hash: "" };
      follow({ name: kept.name }, kept);
    } else if (!address.example && latest.current.name?.startsWith("file:")) {
      // an imported file has no name that an address could carry
    } else if (wanted && wanted !== latest.current.name) load(wanted);
  };
  useEffect(() => void find(), [wanted]);
  useEffect(() => {
    addEventListener("hashchange", find);
    return () => removeEventListener("hashchange", find);
  });

  const body = useMemo(() => draft && (draft.text === null ? { scenario: draft.fields } : { text: draft.text }), [draft]);
  const asked = usePart("describe", body, language);
  const described = asked.asked === body;
  // a text with mistakes still has fields, unless it is no YAML at all
  const broken = draft && draft.text !== null && asked.notices.length > 0 ? body : null;
  const parsed = useAsked(broken, (sent, signal) => postJson("scenarios/fields", sent, language, signal));
  const readable = draft !== null && (draft.text === null || described || (parsed.asked === body && !parsed.notices.length));
  const fields = draft?.text === null ? draft.fields : ((parsed.asked === body ? parsed.answer?.fields : asked.answer?.fields) ?? null);
  const rewritten = useMemo(() => (draft?.text === null ? { scenario: draft.fields, options: { text: draft.base ?? "" } } : null), [draft]);
  const written = usePart("edit", rewritten, language);
  const lastText = useRef(null);
  lastText.current = draft?.text ?? (written.asked === rewritten ? written.answer?.text : null) ?? lastText.current;
  const edited = draft !== null && (draft.text === null || draft.text !== opened.text);

  useEffect(() => {
    if (!draft) return undefined;
    if (!edited) {
      dropDraft();
      if (location.hash.startsWith("#s=")) change({}, { step: false, hash: "" });
      latest.current.hash = "";
      return undefined;
    }
    writeDraft({ ...draft, link: location.hash });
    if (!fields || !described) return undefined;
    const timer = setTimeout(
      () =>
        packed({ name: draft.name, fields }).then((hash) => {
          if (history.now.current !== draft) return;
          latest.current.hash = `#${hash}`;
          change({}, { step: false, hash: `#${hash}` });
          writeDraft({ ...draft, link: `#${hash}` });
        }),
      LINK_PAUSE_MS,
    );
    return () => clearTimeout(timer);
  }, [draft, edited, described]);

  const setFields = (next, what = "fields") => {
    const now = history.now.current;
    history.change({ ...now, text: null, fields: next, base: now.text ?? now.base }, what);
  };
  return {
    shelf,
    saved,
    listSaved,
    name: draft?.name ?? null,
    fields,
    readable,
    text: lastText.current,
    writtenText: async () => (rewritten ? (await askPart("edit", rewritten, language)).text : draft.text),
    body,
    edited,
    description: asked.answer,
    notices: asked.notices,
    failed: asked.failed,
    busy: asked.busy,
    lost,
    setField: (path, value) => {
      const now = history.now.current;
      setFields(withField(now.text === null ? now.fields : fields, path, value), pathText(path));
    },
    setFields,
    setText: (text) => history.change({ ...history.now.current, text, fields: null, base: null }, "text"),
    choose: (name) => {
      dropDraft();
      setLost(null);
      load(name);
      change({ example: name, plan: null }, { hash: "" });
    },
    importText: (name, text) => {
      latest.current = { name, hash: "" };
      take({ name, text, fields: null, base: null }, null);
      change({ example: null, plan: null }, { hash: "" });
    },
    tookName: (name, text) => {
      latest.current = { name, hash: "" };
      setOpened({ name, text });
      history.amend({ name, text, fields: null, base: null });
      change({ example: name }, { hash: "", step: false });
    },
    reset: () => opened.text !== null && history.change({ name: opened.name, text: opened.text, fields: null, base: null }, "reset"),
    canReset: edited && opened.text !== null,
    undo: history.undo,
    redo: history.redo,
    canUndo: history.canUndo,
    canRedo: history.canRedo,
  };
}
