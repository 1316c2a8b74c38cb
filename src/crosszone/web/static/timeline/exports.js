import { html, useState } from "../lib/dom.js";
import { postBlob } from "../lib/api.js";
import { fileName, saveBlob } from "../lib/save.js";
import { useText } from "../lib/text.js";

const FORMATS = [["perfetto", "perfetto.json"], ["crosszone", "trace.json"], ["csv", "spans.csv"]];

/** The step as files, written by the server. @param {{body: any, name: string}} given */
export function Exports({ body, name }) {
  const { t, language } = useText();
  const [failure, setFailure] = useState(null);
  const save = (format, end) =>
    postBlob("timeline/trace", { ...body, format }, language).then(
      (blob) => {
        setFailure(null);
        saveBlob(blob, `${fileName(name)}-${end}`);
      },
      (error) => setFailure(error.notices?.[0]?.message ?? t("failed")),
    );
  return html`
    <div class="timeline-exports" role="group" aria-label=${t("timeline.export.heading")}>
      ${FORMATS.map(([format, end]) => html`
        <button type="button" class="small" title=${t(`timeline.export.${format}_title`)} onClick=${() => save(format, end)}>${t(`timeline.export.${format}`)}</button>`)}
      ${failure && html`<span class="wrong" role="alert">${failure}</span>`}
    </div>`;
}
