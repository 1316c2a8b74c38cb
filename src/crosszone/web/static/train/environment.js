import { html } from "../lib/dom.js";
import { postJson } from "../lib/api.js";
import { useText } from "../lib/text.js";
import { useWork } from "../lib/work.js";
import { Facts } from "../components/facts.js";
import { Sure } from "../compare/sure.js";
import { useWords } from "./words.js";

/**
 * One environment: select it by a click anywhere on it, make it the master, ask its machine, change it, delete it.
 * @param {{entry: import("./entries.js").Entry, chosen: boolean, master: boolean, several: boolean, now: number, toggle: () => void, lead: () => void,
 *   edit: () => void, changed: () => Promise<void>, remove: () => Promise<void>}} given now: seconds since 1970
 */
export function Environment({ entry, chosen, master, several, now, toggle, lead, edit, changed, remove }) {
  const { t, amount, language } = useText();
  const words = useWords();
  const { busy, said, setSaid, during } = useWork();
  const { value } = entry;
  const probe = () =>
    during(async () => {
      try {
        await postJson(`environments/${encodeURIComponent(entry.id)}/probe`, {}, language);
        setSaid({ words: t("train.probed") });
      } finally {
        await changed();
      }
    });
  const click = (event) => !event.target.closest("button, input, label, a, .compare-sure") && toggle();
  const facts = [
    [t("train.fact.zone"), value.zone],
    [t("train.fact.gpus"), words.gpus(value)],
    [t("train.fact.cpus"), value.cpus === null ? "-" : t("train.cores", { count: amount(value.cpus) })],
    [t("train.fact.memory"), words.gigabytes(value.memory_gb)],
    [t("train.fact.image"), value.image ?? "-"],
    [t("train.fact.uptime"), value.since === null || value.status !== "running" ? "-" : words.lasted(Math.max(0, now - value.since))],
  ];
  return html`
    <li class=${`train-environment ${chosen ? "chosen" : ""}`} data-environment=${entry.id} onClick=${click}>
      <div class="train-environment-head">
        <label><input type="checkbox" checked=${chosen} onChange=${toggle} /><span>${value.name}</span></label>
        ${several && master && html`<span class="train-badge master">${t("train.master")}</span>`}
        ${several && chosen && !master && html`<button type="button" class="quiet small" onClick=${lead} aria-label=${t("train.make_master_title", { name: value.name })}>${t("train.make_master")}</button>`}
      </div>
      <p class="train-tags">
        <span class="train-badge">${words.type(value.type)}</span>
        <span class=${`train-badge status ${value.status}`}>${t(`train.status.${value.status}`)}</span>
      </p>
      <${Facts} facts=${facts} />
      <div class="train-environment-foot">
        <button type="button" class="small" disabled=${busy} onClick=${probe} title=${t("train.probe_title")}>${t(busy ? "train.probing" : "train.probe")}</button>
        <button type="button" class="small" onClick=${edit} aria-label=${t("train.edit_title", { name: value.name })}>${t("train.edit")}</button>
        <${Sure} small=${true} label=${t("compare.delete")} title=${t("train.delete_title", { name: value.name })} question=${t("train.delete_sure", { name: value.name })} act=${remove} />
        <span class=${`said ${said?.wrong ? "wrong" : ""}`} role="status">${said?.words}</span>
      </div>
    </li>`;
}
