import { html, useEffect, useRef } from "../lib/dom.js";
import { Outside } from "../lib/outside.js";
import { useText } from "../lib/text.js";

/** A panel at the side with a form in it; Escape and a click beside it close it. @param {{title: string, close: () => void, children: any}} given */
export function Panel({ title, close, children }) {
  return html`<${Outside}><${Shown} title=${title} close=${close}>${children}<//><//>`;
}

function Shown({ title, close, children }) {
  const { t } = useText();
  const dialog = useRef(null);
  useEffect(() => {
    dialog.current.showModal();
    (dialog.current.querySelector("form input, form select, form textarea") ?? dialog.current).focus();
    return () => dialog.current?.close();
  }, []);
  const beside = (event) => event.target === dialog.current && close();
  return html`
    <dialog class="figure-panel train-panel" ref=${dialog} aria-labelledby="train-panel-heading" onClose=${close} onMouseDown=${beside}>
      <div class="panel-head">
        <h2 id="train-panel-heading">${title}</h2>
        <button type="button" class="quiet" onClick=${close}>${t("close")}</button>
      </div>
      <div class="panel-body">${children}</div>
    </dialog>`;
}
