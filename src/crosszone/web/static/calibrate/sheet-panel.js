import { html, useState } from "../lib/dom.js";
import { postBlob } from "../lib/api.js";
import { useAnswers } from "../lib/answers.js";
import { fileName, saveBlob } from "../lib/save.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { Refusals } from "../compare/refusals.js";
import { Drop } from "./drop.js";
import { useFileWork } from "./file-work.js";
import { ImportFound } from "./import-found.js";
import { ScenarioLine } from "./scenario-line.js";

/** The model as a workbook: downloaded for the scenario shown, edited elsewhere, brought back. @param {{change: any}} given */
export function SheetPanel({ change }) {
  const { t, language } = useText();
  const { body, prediction } = useAnswers();
  const [notices, setNotices] = useState([]);
  const [busy, setBusy] = useState(false);
  const work = useFileWork("calibrate/sheet", () => body ?? {});
  const download = () => {
    setBusy(true);
    postBlob("calibrate/sheet/download", body, language)
      .then((blob) => (setNotices([]), saveBlob(blob, `${fileName(prediction?.name ?? "crosszone")}.xlsx`)), (error) => setNotices(error.notices ?? []))
      .finally(() => setBusy(false));
  };
  const bodyOf = (name) => ({ what: "sheet", file: work.file.id, name, ...(body ?? {}) });
  return html`
    <${Card} id="calibrate-sheet" title=${t("calibrate.sheet.heading")} aside=${t("calibrate.sheet.about")}>
      <p class="calibrate-empty">${t("calibrate.sheet.how")}</p>
      <${ScenarioLine} change=${change} words="calibrate.scenario_sheet" />
      <div class="bar">
        <button type="button" disabled=${!body || busy} onClick=${download}>${t(busy ? "calibrate.sheet.making" : "calibrate.sheet.download")}</button>
        <a class="button" href=${`/api/v1/calibrate/sheet?lang=${language}`} download>${t("calibrate.sheet.example")}</a>
        <${Refusals} notices=${notices} />
      </div>
      <${Drop} id="drop-sheet" label=${t("calibrate.sheet.open")} accept=".xlsx,application/vnd.openxmlformats-officedocument.spreadsheetml.sheet" work=${work} />
    <//>
    ${work.found && html`<${ImportFound} found=${work.found} iteration="best" choose=${() => {}} bodyOf=${bodyOf} change=${change} />`}`;
}
