import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { deleteJson, patchJson, postJson, segment } from "../lib/api.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";

/** Keep the scenario under a name; one that was saved before can be written over or deleted. @param {{close: () => void}} given */
export function SaveForm({ close }) {
  const { t, language } = useText();
  const scenario = useScenario();
  const id = scenario.name?.startsWith("saved:") ? scenario.name.slice(6) : null;
  const before = scenario.saved.find((one) => one.id === id);
  const own = typeof scenario.fields?.name === "string" ? scenario.fields.name : "";
  const [name, setName] = useState(before?.name ?? (own || t("bar.untitled")));
  const [said, setSaid] = useState(null);
  const field = useRef(null);
  useEffect(() => field.current.select(), []);

  const attempt = async (work) => {
    try {
      await work();
      scenario.listSaved();
      close();
    } catch (error) {
      const [notice] = error.notices ?? [];
      setSaid(notice ? `${notice.message} ${notice.hint}` : t("failed"));
    }
  };
  const add = () => attempt(async () => {
    const text = await scenario.writtenText();
    const made = await postJson("scenarios", { name, text }, language);
    scenario.tookName(`saved:${made.id}`, text);
  });
  const replace = () => attempt(async () => {
    const text = await scenario.writtenText();
    await patchJson(`scenarios/${segment(id)}`, { name, text }, language);
    scenario.tookName(scenario.name, text);
  });
  const remove = () => attempt(async () => {
    await deleteJson(`scenarios/${segment(id)}`, language);
    scenario.choose(scenario.shelf.default);
  });
  return html`
    <form class=${`save-form field ${said ? "error" : ""}`} onSubmit=${(event) => { event.preventDefault(); if (before) replace(); else add(); }}
      onKeyDown=${(event) => event.key === "Escape" && close()}>
      <label for="save-name">${t("bar.save_name")}</label>
      <input id="save-name" ref=${field} type="text" required maxlength="200" value=${name} onInput=${(event) => setName(event.target.value)}
        aria-invalid=${said ? "true" : null} aria-describedby="save-said" />
      <div class="save-buttons">
        <button type="submit" class="primary">${before ? t("bar.save_over") : t("bar.save")}</button>
        ${before && html`<button type="button" onClick=${add}>${t("bar.save_new")}</button>`}
        ${before && html`<button type="button" class="danger" onClick=${remove}>${t("bar.delete")}</button>`}
        <button type="button" class="quiet" onClick=${close}>${t("bar.cancel")}</button>
      </div>
      <p id="save-said" class="said-block" role="alert">${said}</p>
    </form>`;
}
