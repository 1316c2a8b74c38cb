import { html, useState } from "../lib/dom.js";
import { postJson } from "../lib/api.js";
import { useText } from "../lib/text.js";

const MOST = 1_000_000;

/** A Hugging Face config.json, pasted or dropped, becomes the fields of a model. @param {{done: (fields: any) => void}} given */
export function HfImport({ done }) {
  const { t, language } = useText();
  const [text, setText] = useState("");
  const [said, setSaid] = useState(null);
  const read = async (given) => {
    try {
      const { name, fields } = await postJson("catalogue/models/hf", { text: given.slice(0, MOST) }, language);
      done({ name, ...fields.architecture });
    } catch (error) {
      const [notice] = error.notices ?? [];
      setSaid(notice ? `${notice.message} ${notice.hint}` : t("failed"));
    }
  };
  const drop = async (event) => {
    event.preventDefault();
    event.stopPropagation();
    const [file] = event.dataTransfer.files;
    if (file) setText((await file.text()).slice(0, MOST));
  };
  return html`
    <form class=${`field wide ${said ? "error" : ""}`} onSubmit=${(event) => { event.preventDefault(); read(text); }}>
      <div class="field-head"><label for="hf-config">${t("form.hf_label")}</label></div>
      <textarea id="hf-config" rows="9" spellcheck=${false} maxlength=${MOST} value=${text} onDrop=${drop} aria-invalid=${said ? "true" : null} aria-describedby="hf-said"
        placeholder=${'{"model_type": "llama", "hidden_size": 4096, ...}'} onInput=${(event) => { setText(event.target.value); setSaid(null); }}></textarea>
      <p id="hf-said" class="said-block" role="alert">${said}</p>
      <button type="submit" disabled=${!text.trim()}>${t("form.hf_use")}</button>
    </form>`;
}
