import { html, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Refusals } from "../compare/refusals.js";
import { usePercent } from "./words.js";

const TOLD = ["trace", "fitting", "variations"];

/** What is being done with a file, in words. @param {import("./file-work.js").FileWork["file"]} file @param {import("./file-work.js").FileWork["progress"]} progress */
function useDoing(file, progress) {
  const { t, amount } = useText();
  const { pct } = usePercent();
  if (file && !file.id) return t("calibrate.doing.sending");
  if (!progress?.of || !TOLD.includes(progress.what)) return t("calibrate.doing.reading");
  return t(`calibrate.doing.${progress.what}`, { done: amount(progress.done), of: amount(progress.of), share: pct((100 * progress.done) / progress.of) });
}

/**
 * Where a file is chosen or dropped, with what the server is doing with it and what is wrong with it.
 * @param {{id: string, label: string, accept: string, work: import("./file-work.js").FileWork, disabled?: boolean}} given
 */
export function Drop({ id, label, accept, work, disabled = false }) {
  const { t, amount } = useText();
  const [over, setOver] = useState(false);
  const take = (file) => file && !disabled && work.take(file);
  const picked = async (event) => {
    const field = event.target;
    const [file] = field.files;
    take(file);
    field.value = ""; // so that the same file can be picked again once it is corrected
  };
  const dropped = (event) => {
    event.preventDefault();
    setOver(false);
    take(event.dataTransfer.files[0]);
  };
  const dragged = (event) => {
    event.preventDefault();
    setOver(true);
  };
  const { file, progress } = work;
  const doing = useDoing(file, progress);
  return html`
    <div class=${`calibrate-drop${over ? " over" : ""}`} onDragOver=${dragged} onDragLeave=${() => setOver(false)} onDrop=${dropped}>
      <label class="button calibrate-file" aria-disabled=${disabled ? "true" : null}>
        <input id=${id} type="file" class="visually-hidden" accept=${accept} disabled=${disabled} onChange=${picked}
          aria-invalid=${work.notices.length ? "true" : null} aria-describedby=${work.notices.length ? `${id}-wrong` : null} />
        <span>${label}</span>
      </label>
      ${file ? html`<span class="calibrate-name">${file.name} <span class="quiet-text">${t("calibrate.kib", { size: amount(Math.ceil(file.bytes / 1024)) })}</span></span>` : html`<span class="hint">${t("calibrate.drop")}</span>`}
      ${work.busy && html`
        <span role="status" class="calibrate-busy">
          <progress max=${progress?.of || null} value=${progress?.of ? progress.done : null} aria-label=${doing}></progress>
          <span>${doing}</span> <button type="button" class="link" onClick=${work.cancel}>${t("calibrate.cancel")}</button>
        </span>`}
      ${work.stopped && html`
        <span role="status" class="calibrate-busy">${t("calibrate.stopped")} ${file?.id && html`<button type="button" class="link" onClick=${() => work.look()}>${t("calibrate.doing.again")}</button>`}</span>`}
      ${file && !work.busy && html`<button type="button" class="small" onClick=${work.drop}>${t("calibrate.forget")}</button>`}
    </div>
    <div id=${`${id}-wrong`} class="calibrate-said"><${Refusals} notices=${work.notices} failed=${work.failed} /></div>`;
}
