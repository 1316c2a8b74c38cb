import { html, useRef } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/** Which scenario is open, and the ways to bring another or take this one along. */
export function ScenarioBar({ shelf, name, edited, text, choose, importText, reset }) {
  const { t } = useText();
  const picker = useRef(null);
  const imported = name?.startsWith("file:");

  const take = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (file) importText(file.name, await file.text());
  };
  const save = () => {
    const address = URL.createObjectURL(new Blob([text], { type: "application/yaml" }));
    const anchor = document.createElement("a");
    anchor.href = address;
    anchor.download = fileName(name);
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  };

  return html`
    <div class="bar">
      <label class="chooser">
        <span>${t("source.scenario")}</span>
        <select value=${name} onChange=${(event) => choose(event.target.value)}>
          ${imported && html`<option value=${name} selected>${name.slice(5)}</option>`}
          ${shelf.examples.map(
            (example) => html`
              <option key=${example.name} value=${example.name} selected=${example.name === name}>
                ${example.opened ? example.name : example.title}
              </option>`,
          )}
        </select>
      </label>
      ${edited && html`<button type="button" class="quiet" onClick=${reset}>${t("source.reset")}</button>`}
      <span class="grow"></span>
      <input ref=${picker} type="file" accept=".yaml,.yml,.json" class="visually-hidden" tabindex="-1" aria-hidden="true"
        onChange=${take} />
      <button type="button" onClick=${() => picker.current.click()}>${t("source.import")}</button>
      <button type="button" disabled=${!text} onClick=${save}>${t("source.export")}</button>
    </div>`;
}

const fileName = (name) => `${(name ?? "scenario").replace(/^file:/, "").replace(/\.(ya?ml|json)$/, "")}.yaml`;
