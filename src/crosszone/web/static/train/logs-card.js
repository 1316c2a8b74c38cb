import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/dom.js";
import { fetchJson } from "../lib/api.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { Refusals } from "../compare/refusals.js";
import { useEvery } from "./live.js";

/** Bytes that are read at once, and that are held at most. */
const PART = 32768;
const MOST = 1 << 20;
const NOTHING = { text: "", from: 0, next: 0, size: 0 };

/** Logs of every node and rank: read from the end, paged back, followed. @param {{id: string, live: boolean, task: any}} given */
export function Logs({ id, live, task }) {
  const { t, language } = useText();
  const [files, setFiles] = useState(null);
  const [chosen, setChosen] = useState(null);
  const [notices, setNotices] = useState([]);
  const path = `training-tasks/${encodeURIComponent(id)}/logs`;
  const reload = () =>
    fetchJson(path, language).then(
      (found) => (setFiles(found.files), setNotices([])),
      (error) => setNotices(error.notices ?? []),
    );
  useEffect(() => void reload(), [id, task.state]);
  useEvery(reload, live, 5000);
  const keyOf = (file) => `${file.node} ${file.name}`;
  const file = files?.find((one) => keyOf(one) === chosen) ?? files?.[0];
  const called = (one) => {
    const where = t("train.log_node", { number: one.node, name: task.nodes.find((node) => node.number === one.node)?.name ?? one.environment });
    const short = one.name.split("/").at(-1);
    return one.rank === null ? `${where} · ${short}` : `${where} · ${t("train.log_rank", { rank: one.rank })} · ${short}`;
  };
  return html`
    <${Card} id="train-logs" title=${t("train.logs")} aside=${t("train.logs_about")}>
      <${Refusals} notices=${notices} />
      ${!files?.length && html`<p class="empty">${t("train.no_logs")}</p>`}
      ${file && html`
        <div class="bar">
          <label class="chooser"><span>${t("train.log")}</span>
            <select data-choose="log" value=${keyOf(file)} onChange=${(event) => setChosen(event.target.value)}>
              ${files.map((one) => html`<option key=${keyOf(one)} value=${keyOf(one)} selected=${one === file}>${called(one)}</option>`)}
            </select>
          </label>
        </div>
        <${Log} key=${keyOf(file)} path=${`${path}/${file.node}?name=${encodeURIComponent(file.name)}`} file=${file} live=${live} label=${called(file)} />`}
    <//>`;
}

function Log({ path, file, live, label }) {
  const { t, amount, language } = useText();
  const [part, setPart] = useState(NOTHING);
  const [follow, setFollow] = useState(true);
  const frame = useRef(null);
  const read = (offset, most) => fetchJson(`${path}&offset=${offset}&most=${most}`, language);
  const start = async () => {
    const found = await read(Math.max(0, file.bytes - PART), PART).catch(() => null);
    if (found) setPart({ text: found.text, from: found.offset, next: found.next, size: found.size });
  };
  const older = async () => {
    const from = Math.max(0, part.from - PART);
    const found = await read(from, part.from - from).catch(() => null);
    if (found) setPart((old) => ({ ...old, text: found.text + old.text, from: found.offset < old.from ? found.offset : 0 }));
    setFollow(false);
  };
  const newer = async () => {
    const found = await read(part.next, PART).catch(() => null);
    if (!found || found.next === part.next) return;
    setPart((old) => {
      const text = found.offset > old.next ? found.text : old.text + found.text; // what lay between was dropped
      return { text: text.slice(-MOST), from: text.length > MOST || found.offset > old.next ? found.offset : old.from, next: found.next, size: found.size };
    });
  };
  useEffect(() => void start(), []);
  useEffect(() => void (!live && part.next && newer()), [live]);
  useEvery(newer, live && follow);
  useLayoutEffect(() => {
    if (follow && frame.current) frame.current.scrollTop = frame.current.scrollHeight;
  }, [part.text, follow]);
  return html`
    <div class="train-log">
      <div class="bar">
        <button type="button" class="small" disabled=${part.from === 0} onClick=${older}>${t("train.log_older")}</button>
        <span class="quiet-text">${t("train.log_bytes", { from: amount(part.from), to: amount(part.next) })}</span>
        <span class="grow"></span>
        <label class="train-check"><input type="checkbox" checked=${follow} onChange=${(event) => setFollow(event.target.checked)} /><span>${t("train.follow")}</span></label>
      </div>
      <pre ref=${frame} tabindex="0" aria-label=${label}>${part.text}</pre>
    </div>`;
}
