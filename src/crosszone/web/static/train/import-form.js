import { html, useState } from "../lib/dom.js";
import { postJson } from "../lib/api.js";
import { useText } from "../lib/text.js";
import { Refusals } from "../compare/refusals.js";
import { useSaving } from "./entry-form.js";
import { Field, noticeOf } from "./field.js";

const FORMATS = ["yaml", "ssh_config", "slurm", "kubernetes"];
/** Those that are a text; the others are asked for on the server. */
const TEXTS = ["yaml", "ssh_config"];

/** Environments from a list, an ssh config or a cluster. @param {{done: (found: any) => void}} given */
export function ImportForm({ done }) {
  const { t, language } = useText();
  const [format, setFormat] = useState("yaml");
  const [text, setText] = useState("");
  const [zone, setZone] = useState("");
  const { notices, failed, busy, submit, form } = useSaving();
  const typed = TEXTS.includes(format);
  const zoned = format === "ssh_config";
  const body = () => ({ format, ...(typed ? { text } : {}), ...(zoned && zone.trim() ? { zone: zone.trim() } : {}) });
  const read = async (event) => {
    const [file] = event.target.files;
    if (file) setText(await file.text());
  };
  const beside = ["format", "text", "zone"];
  return html`
    <form ref=${form} class="train-form" noValidate onSubmit=${submit(() => postJson("environments/import", body(), language), done)}>
      <${Refusals} notices=${notices.filter((notice) => !(typed && beside.some((name) => notice.field === name)))} failed=${failed} />
      <div class="train-fields">
        <${Field} id="import-format" name="format" label=${t("train.import.format")} wide=${true} note=${t(`train.import_about.${format}`)}
          input=${(common) => html`
            <select ...${common} value=${format} onChange=${(event) => setFormat(event.target.value)}>
              ${FORMATS.map((one) => html`<option key=${one} value=${one} selected=${one === format}>${t(`train.import_format.${one}`)}</option>`)}
            </select>`} />
        ${zoned && html`
          <${Field} id="import-zone" name="zone" label=${t("train.field.zone")} required=${true} wide=${true} notice=${noticeOf(notices, "zone")}
            input=${(common) => html`<input ...${common} list="train-zones" maxlength="200" autocomplete="off" value=${zone} onInput=${(event) => setZone(event.target.value)} />`} />`}
        ${typed && html`
          <${Field} id="import-text" name="text" label=${t("train.import.text")} wide=${true} notice=${noticeOf(notices, "text")}
            input=${(common) => html`<textarea ...${common} rows="12" spellcheck=${false} maxlength="1000000" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>`} />
          <label class="button train-file">
            <input class="visually-hidden" type="file" aria-label=${t("train.import.file")} onChange=${read} />
            <span>${t("train.import.file")}</span>
          </label>`}
      </div>
      <div class="train-form-foot"><button type="submit" class="primary" disabled=${busy}>${t(busy ? "train.import.busy" : "train.import.do")}</button></div>
    </form>`;
}
