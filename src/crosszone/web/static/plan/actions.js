import { html, useState } from "../lib/dom.js";
import { linkTo } from "../lib/address.js";
import { useAnswers } from "../lib/answers.js";
import { postBlob, postJson } from "../lib/api.js";
import { fileName, saveBlob } from "../lib/save.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { useWork } from "../lib/work.js";
import { usePlanWords } from "./words.js";

const OBJECTIVES = ["time", "cost", "memory", "energy"];

/** What plans are ranked by. */
export function ObjectiveChooser() {
  const { t, label } = useText();
  const { objective, rankBy } = useAnswers();
  return html`
    <div class="segmented" role="group" aria-label=${t("plan.objective")}>
      ${OBJECTIVES.map((one) => html`
        <button type="button" key=${one} aria-pressed=${String(one === objective)} onClick=${() => rankBy(one)}>${label(`objective_${one}`)}</button>`)}
    </div>`;
}

/** Keep, report and print what is shown. */
export function Actions() {
  const { t, language } = useText();
  const { body, chosen, prediction } = useAnswers();
  const { name } = useScenario();
  const { nameOf } = usePlanWords();
  const [saving, setSaving] = useState(null);
  const { busy, said, setSaid, during } = useWork();
  const ready = Boolean(body && prediction) && !busy;

  const save = (event) => {
    event.preventDefault();
    during(async () => {
      const made = await postJson("results", { ...body, kind: "predicted", name: saving.trim() || null }, language);
      setSaving(null);
      setSaid({ words: t("plan.saved", { name: made.name }), link: true });
    });
  };
  const report = (format) =>
    during(async () => saveBlob(await postBlob("report", { ...body, format }, language), `${fileName(name ?? "scenario")}-report.${format}`));

  return html`
    <div class="plan-actions" role="group" aria-label=${t("plan.actions")}>
      ${saving === null
        ? html`<button type="button" disabled=${!ready} onClick=${() => setSaving(`${prediction.name}: ${nameOf(chosen)}`)}>${t("plan.save")}</button>`
        : html`
          <form class="inline-form" onSubmit=${save}>
            <input aria-label=${t("plan.save_name")} maxlength="200" value=${saving} onInput=${(event) => setSaving(event.target.value)} />
            <button type="submit" disabled=${busy}>${t("plan.save_now")}</button>
            <button type="button" class="quiet" onClick=${() => setSaving(null)}>${t("plan.not_now")}</button>
          </form>`}
      <button type="button" disabled=${!ready} onClick=${() => report("html")}>${t("plan.report_html")}</button>
      <button type="button" disabled=${!ready} onClick=${() => report("md")}>${t("plan.report_md")}</button>
      <button type="button" disabled=${!prediction} onClick=${() => print()}>${t("plan.print")}</button>
      <span class=${`said ${said?.wrong ? "wrong" : ""}`} role="status">
        ${busy ? t("plan.busy") : said?.words} ${said?.link && html`<a href=${linkTo({ place: "compare" })}>${t("places.compare")}</a>`}
      </span>
    </div>`;
}
