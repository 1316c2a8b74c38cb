import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Refusals } from "./refusals.js";

/** The name of a result, changed in place. @param {{row: import("./results.js").ResultRow, rename: (id: string, name: string) => Promise<void>}} given */
export function Name({ row, rename }) {
  const { t } = useText();
  const [typed, setTyped] = useState(null);
  const [notices, setNotices] = useState([]);
  const field = useRef(null);
  const opener = useRef(null);
  const editing = typed !== null;
  useEffect(() => {
    if (editing) field.current.select();
  }, [editing]);
  const end = () => {
    setTyped(null);
    setNotices([]);
    requestAnimationFrame(() => opener.current?.focus());
  };
  const save = (event) => {
    event.preventDefault();
    if (typed.trim() === row.name) return end();
    return rename(row.id, typed).then(end, (error) => setNotices(error.notices?.length ? error.notices : [{ level: "error", message: t("failed"), hint: "" }]));
  };
  if (!editing) {
    return html`
      <span class="compare-name">
        <span>${row.name}</span>
        <button type="button" class="quiet small" ref=${opener} title=${t("compare.rename_title", { name: row.name })} aria-label=${t("compare.rename_title", { name: row.name })} onClick=${() => setTyped(row.name)}>${t("compare.rename")}</button>
      </span>`;
  }
  return html`
    <form class="compare-name" onSubmit=${save}>
      <input ref=${field} value=${typed} maxlength="200" aria-label=${t("compare.new_name", { name: row.name })} aria-invalid=${notices.length > 0}
        onInput=${(event) => setTyped(event.target.value)} onKeyDown=${(event) => event.key === "Escape" && end()} />
      <button type="submit" class="small">${t("compare.rename")}</button>
      <button type="button" class="quiet small" onClick=${end}>${t("compare.keep")}</button>
      <${Refusals} notices=${notices} />
    </form>`;
}
