import { html, useMemo } from "../lib/dom.js";
import { saveText } from "../lib/save.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { More } from "../components/more.js";
import { Code } from "./code.js";
import { CopyButton } from "./copy-button.js";

const FIRST = 16;

/** The files of a bundle, one of them shown. @param {{bundle: any, path: string | null, choose: (path: string) => void}} given */
export function Files({ bundle, path, choose }) {
  const { t, amount } = useText();
  const folders = useMemo(() => foldersOf(bundle.files), [bundle]);
  const shown = bundle.files.find((one) => one.path === path) ?? bundle.files[0];
  const entry = (one) => html`
    <li key=${one.path}>
      <button type="button" class="deploy-file" aria-current=${one.path === shown.path ? "true" : null} onClick=${() => choose(one.path)}>${one.path.split("/").at(-1)}</button>
    </li>`;
  return html`
    <${Card} id="deploy-files" title=${t("deploy.files")} aside=${t("deploy.files_about", { count: amount(bundle.files.length) })}>
      <div class="deploy-files">
        <nav class="deploy-tree" aria-label=${t("deploy.files")}>
          <ul>
            ${folders.get("").map(entry)}
            ${[...folders].filter(([folder]) => folder).map(([folder, files]) => html`
              <li key=${folder}>
                <details open=${shown.path.startsWith(`${folder}/`) || null}>
                  <summary>${folder}/ <span class="quiet-text">${amount(files.length)}</span></summary>
                  <ul><${More} items=${files} most=${FIRST} row=${entry} /></ul>
                </details>
              </li>`)}
          </ul>
        </nav>
        <div class="deploy-shown">
          <div class="deploy-shown-head">
            <h3 data-shown=${shown.path}>${shown.path}</h3>
            <${CopyButton} small=${true} text=${() => shown.text} label=${t("deploy.copy_file")} />
            <button type="button" class="small" onClick=${() => saveText(shown.text, shown.path.split("/").at(-1))}>${t("deploy.save_file")}</button>
          </div>
          <${Code} key=${shown.path} path=${shown.path} text=${shown.text} />
        </div>
      </div>
    <//>`;
}

/** Files by folder, those of none first. @returns {Map<string, any[]>} */
function foldersOf(files) {
  const found = new Map([["", []]]);
  for (const one of files) {
    const folder = one.path.split("/").slice(0, -1).join("/");
    if (!found.has(folder)) found.set(folder, []);
    found.get(folder).push(one);
  }
  return found;
}
