import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { ScenarioBar } from "../components/scenario-bar.js";
import { FormTab } from "./form-tab.js";
import { TextTab } from "./text-tab.js";

const TABS = ["form", "text"];
/** A larger file is no scenario; the server takes no more either. */
const MOST_BYTES = 4 * 1024 * 1024;

/** The scenario on the left: its steps and its text. @param {{address: any, change: any}} given */
export function ScenarioPane({ address, change }) {
  const { t } = useText();
  const scenario = useScenario();
  const tab = address.tab === "text" ? "text" : "form";
  const [open, setOpen] = useState(false);
  const [dropping, setDropping] = useState(false);
  const [said, setSaid] = useState(null);
  const drawn = useRef(null);

  const importFile = async (file) => {
    setSaid(null);
    if (file.size > MOST_BYTES) setSaid(t("bar.too_large", { name: file.name }));
    else scenario.importText(`file:${file.name}`, await file.text());
  };
  const drop = (event) => {
    event.preventDefault();
    setDropping(false);
    const [file] = event.dataTransfer.files;
    if (file) importFile(file);
  };
  const over = (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    setDropping(true);
  };
  useEffect(() => {
    const key = (event) => {
      if (!(event.ctrlKey || event.metaKey) || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) return;
      const redo = event.key === "y" || (event.key.toLowerCase() === "z" && event.shiftKey);
      if (!redo && event.key !== "z") return;
      event.preventDefault();
      if (redo) scenario.redo();
      else scenario.undo();
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  });

  const arrows = (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const next = tab === "form" ? "text" : "form";
    change({ tab: next === "form" ? null : next }, { step: false });
    event.currentTarget.querySelector(`#tab-${next}`).focus();
  };
  return html`
    <section class=${`pane source ${open ? "open" : ""} ${dropping ? "dropping" : ""}`} aria-labelledby="source-heading" ref=${drawn}
      onDragOver=${over} onDragLeave=${(event) => event.target === drawn.current && setDropping(false)} onDrop=${drop}>
      <h2 id="source-heading" class="visually-hidden">${t("source.heading")}</h2>
      <${ScenarioBar} importFile=${importFile} said=${said} fold=${html`
        <button type="button" class="fold" aria-expanded=${String(open)} aria-controls="scenario-parts" onClick=${() => setOpen(!open)}>
          ${open ? t("form.fold_close") : t("form.fold_open")}
        </button>`} />
      <div class="parts" id="scenario-parts">
        <div class="tabs" role="tablist" aria-label=${t("form.tabs")} onKeyDown=${arrows}>
          ${TABS.map((one) => html`
            <button type="button" role="tab" id=${`tab-${one}`} aria-selected=${String(tab === one)} aria-controls=${`panel-${one}`} tabindex=${tab === one ? 0 : -1}
              onClick=${() => change({ tab: one === "form" ? null : one }, { step: false })}>${t(`form.tab_${one}`)}</button>`)}
        </div>
        <div class="panel" role="tabpanel" id=${`panel-${tab}`} aria-labelledby=${`tab-${tab}`}>
          ${tab === "form"
            ? html`<${FormTab} address=${address} change=${change} finish=${() => setOpen(false)} />`
            : html`<${TextTab} />`}
        </div>
      </div>
      ${dropping && html`<p class="drop-note">${t("bar.drop")}</p>`}
    </section>`;
}
