import { html, useRef, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Refusals } from "./refusals.js";

const NUMBERS = ["step_time_s", "tokens_per_s", "memory_gib", "usd"];

/** A form for a run that was measured, or a row of a sheet. @param {{save: (body: any) => Promise<any>}} given */
export function AddResult({ save }) {
  const { t } = useText();
  const form = useRef(null);
  const [notices, setNotices] = useState([]);
  const [done, setDone] = useState(null);
  const [file, setFile] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    setDone(null);
    const given = new FormData(form.current);
    const trace = /** @type {File} */ (given.get("trace"));
    const figures = Object.fromEntries(NUMBERS.map((key) => [key, given.get(key)]).filter(([, typed]) => typed).map(([key, typed]) => [key, Number(typed)]));
    const name = given.get("name") || null;
    if (!trace.size && !figures.step_time_s) return setNotices([{ level: "error", message: t("compare.add_missing"), hint: "" }]);
    const body = trace.size ? { kind: "measured", name, trace: await trace.text() } : { kind: given.get("kind"), name, figures };
    return save(body).then(
      (made) => {
        form.current.reset();
        setFile(null);
        setNotices([]);
        setDone(made.name);
      },
      (error) => setNotices(error.notices?.length ? error.notices : [{ level: "error", message: t("failed"), hint: "" }]),
    );
  };
  return html`
    <details class="card compare-add">
      <summary>${t("compare.add")}</summary>
      <form ref=${form} onSubmit=${submit} novalidate>
        <p class="quiet-text">${t("compare.add_about")}</p>
        <div class="compare-fields">
          <label><span>${t("compare.column.name")}</span><input name="name" maxlength="200" /></label>
          <label><span>${t("compare.column.kind")}</span>
            <select name="kind"><option value="measured">${t("compare.kind.measured")}</option><option value="sheet">${t("compare.kind.sheet")}</option></select></label>
          ${NUMBERS.map((key) => html`<label key=${key}><span>${t(`compare.figure.${key}`)}</span><input name=${key} type="number" min="0" step="any" inputmode="decimal" /></label>`)}
          <label class="button compare-file">
            <input class="visually-hidden" name="trace" type="file" aria-label=${t("compare.add_trace")} accept=".json,.csv,application/json,text/csv" onChange=${(event) => setFile(event.target.files[0]?.name ?? null)} />
            <span>${file ?? t("compare.add_trace")}</span>
          </label>
          <button type="submit">${t("compare.add_save")}</button>
        </div>
        <${Refusals} notices=${notices} />
        <p role="status" class="quiet-text">${done && t("compare.saved", { name: done })}</p>
      </form>
    </details>`;
}
