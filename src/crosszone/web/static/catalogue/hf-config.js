import { html, useState } from "../lib/dom.js";
import { postJson } from "../lib/api.js";
import { useText } from "../lib/text.js";

/** Fills the form from a pasted Hugging Face config.json. @param {{read: (imported: {name: string, fields: any, parameters: any}) => void}} given */
export function HfConfig({ read }) {
  const { t, language, billions } = useText();
  const [text, setText] = useState("");
  const [imported, setImported] = useState(null);
  const [notices, setNotices] = useState([]);
  const submit = () =>
    postJson("catalogue/models/hf", { text }, language).then(
      (found) => {
        setImported(found);
        setNotices([]);
        read(found);
      },
      (error) => {
        setImported(null);
        setNotices(error.notices.length ? error.notices : [{ message: t("failed"), hint: "" }]);
      },
    );
  return html`
    <details class="form-group hf">
      <summary>${t("catalogue.hf.title")}</summary>
      <div class="form-field whole">
        <label for="hf-config">${t("catalogue.hf.label")}</label>
        <textarea id="hf-config" rows="6" spellcheck=${false} value=${text} placeholder=${'{"model_type": "llama", "hidden_size": 4096, ...}'}
          onInput=${(event) => setText(event.target.value)}></textarea>
        <div class="hf-read">
          <button type="button" disabled=${!text.trim()} onClick=${submit}>${t("catalogue.hf.read")}</button>
          <p role="status">${imported && t("catalogue.hf.done", { name: imported.name, parameters: billions(imported.parameters.total) })}</p>
        </div>
        ${notices.map((notice) => html`<p class="field-error" role="alert">${notice.message} ${notice.hint}</p>`)}
      </div>
    </details>`;
}
