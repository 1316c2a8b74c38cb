import { html, useRef, useState } from "../lib/dom.js";
import { copyText } from "../lib/copy.js";
import { saveText } from "../lib/save.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { useAnswers } from "../lib/answers.js";
import { planCommand } from "../scenario/command.js";
import { SaveForm } from "../scenario/save-form.js";

/** Which scenario is open, and the ways to bring another or take this one along. @param {{importFile: (file: File) => void, said: string | null, fold: any}} given */
export function ScenarioBar({ importFile, said, fold }) {
  const { t } = useText();
  const scenario = useScenario();
  const { objective } = useAnswers();
  const { shelf, saved, name, edited } = scenario;
  const picker = useRef(null);
  const [saving, setSaving] = useState(false);
  const [told, setTold] = useState(null);
  const listed = shelf.examples.some((example) => example.name === name) || saved.some((one) => `saved:${one.id}` === name);

  const take = (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (file) importFile(file);
  };
  const tell = async (done) => {
    setTold((await done) ? t("bar.copied") : t("bar.not_copied"));
    setTimeout(() => setTold(null), 2500);
  };
  const command = async () => planCommand({ name, edited: edited || !listed || name.startsWith("saved:"), text: await scenario.writtenText(), objective });
  const tool = (key, act, disabled = false) => html`
    <button type="button" class="quiet small" disabled=${disabled} onClick=${act} title=${t(`bar.${key}_title`)}>${t(`bar.${key}`)}</button>`;
  return html`
    <div class="bar scenario-bar">
      <label class="chooser">
        <span class="visually-hidden">${t("source.scenario")}</span>
        <select value=${name} onChange=${(event) => scenario.choose(event.target.value)}>
          ${!listed && html`<option value=${name ?? ""} selected>${shownName(name)}</option>`}
          <optgroup label=${t("bar.examples")}>
            ${shelf.examples.map((example) => html`
              <option key=${example.name} value=${example.name} selected=${example.name === name}>${example.opened ? example.name : example.title}</option>`)}
          </optgroup>
          ${saved.length > 0 && html`
            <optgroup label=${t("bar.saved")}>
              ${saved.map((one) => html`<option key=${one.id} value=${`saved:${one.id}`} selected=${`saved:${one.id}` === name}>${one.name}</option>`)}
            </optgroup>`}
        </select>
      </label>
      ${edited && html`<span class="edited" title=${t("bar.edited_title")}>${t("bar.edited")}</span>`}
      <span class="grow"></span>
      <button type="button" class="quiet icon" disabled=${!scenario.canUndo} onClick=${scenario.undo} aria-label=${t("bar.undo")} title=${t("bar.undo")}>↶</button>
      <button type="button" class="quiet icon" disabled=${!scenario.canRedo} onClick=${scenario.redo} aria-label=${t("bar.redo")} title=${t("bar.redo")}>↷</button>
      ${fold}
      <input ref=${picker} type="file" accept=".yaml,.yml,.json" class="visually-hidden" tabindex="-1" aria-hidden="true" onChange=${take} />
      <div class="tools" role="group" aria-label=${t("bar.tools")}>
        ${tool("save", () => setSaving(!saving), !scenario.fields)}
        ${tool("import", () => picker.current.click())}
        ${tool("export", async () => saveText(await scenario.writtenText(), fileName(name), "application/yaml"), !scenario.text)}
        ${tool("link", () => tell(copyText(location.href)))}
        ${tool("command", () => tell(command().then(copyText)), !scenario.text)}
        ${tool("reset", scenario.reset, !scenario.canReset)}
        <span class="told" role="status">${told}</span>
      </div>
      ${said && html`<p class="text-error" role="alert">${said}</p>`}
      ${saving && html`<${SaveForm} close=${() => setSaving(false)} />`}
    </div>`;
}

const shownName = (name) => (name ?? "").replace(/^file:/, "");
const fileName = (name) => `${(name ?? "scenario").replace(/^(file|saved):/, "").replace(/\.(ya?ml|json)$/, "")}.yaml`;
