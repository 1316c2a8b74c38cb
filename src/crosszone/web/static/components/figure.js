import { html, useState } from "../lib/dom.js";
import { Outside } from "../lib/outside.js";
import { useText } from "../lib/text.js";
import { FigurePanel } from "./figure-panel.js";

/**
 * A number that opens to its formula and inputs.
 * @param {{path: string, children: any}} given path as /explain takes it
 */
export function Figure({ path, children }) {
  const { t } = useText();
  const [open, setOpen] = useState(false);
  const show = (event) => {
    event.stopPropagation(); // a row that holds the figure may do something of its own
    setOpen(true);
  };
  return html`
    <button type="button" class="figure" data-path=${path} aria-haspopup="dialog" aria-expanded=${String(open)} title=${t("explain.open")} onClick=${show}>${children}</button>
    ${open && html`<${Outside}><${FigurePanel} path=${path} close=${() => setOpen(false)} /><//>`}`;
}
