import { html, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Field, Note } from "./field.js";
import { useForm } from "./form.js";
import { NodeGroup } from "./node-group.js";
import { Region } from "./region.js";
import { groupsOf, withoutZone, withZoneMoved, withZoneName, zonesOf } from "./zone-edits.js";

const FIGURES = ["uplink_gbps", "downlink_gbps", "carbon_g_per_kwh", "pue"];

/** One zone: a line that opens to its fields. @param {{zone: any, index: number, count: number, open: boolean, show: (index: number | null) => void}} given */
export function Zone({ zone, index, count, open, show }) {
  const { t, amount } = useText();
  const { fields, setAll, set, description, noticeAt } = useForm();
  const path = ["cluster", "zones", index];
  const groups = groupsOf(zone);
  const machines = groups.map((group) => `${group?.count ?? 1} × ${group?.gpus ?? "?"} ${gpuName(group?.gpu)}`).join(" + ");
  const region = typeof zone.region === "string" ? zone.region : zone.region ? `${zone.region.lat}, ${zone.region.lon}` : "";
  const notice = noticeAt(path);
  const known = description?.cluster.zones.find((one) => one.name === zone.name);
  const move = (by) => {
    setAll(withZoneMoved(fields, index, by));
    show(index + by);
  };
  const remove = () => {
    setAll(withoutZone(fields, index));
    show(null);
  };
  return html`
    <details class=${`zone ${notice?.level ?? ""}`} open=${open} data-zone=${zone.name}
      onToggle=${(event) => event.currentTarget.open !== open && show(event.currentTarget.open ? index : null)}>
      <summary>
        <span class="zone-name">${zone.name ?? "?"}</span>
        <span class="zone-about">${[region, machines].filter(Boolean).join(" · ")}</span>
      </summary>
      ${open && html`
        <fieldset>
          <legend class="visually-hidden">${t("form.zone", { name: zone.name })}</legend>
          <div class="fields">
            <${ZoneName} key=${zone.name} index=${index} />
            <${Region} path=${[...path, "region"]} known=${known} />
            ${FIGURES.slice(0, 2).map((key) => html`<${Field} key=${key} owner="Zone" path=${[...path, key]} placeholder=${t("form.no_limit")} />`)}
            <${Field} owner="Zone" path=${[...path, "carbon_g_per_kwh"]} placeholder=${known ? amount(known.carbon_g_per_kwh) : ""} />
            <${Field} owner="Zone" path=${[...path, "pue"]} placeholder="1" />
          </div>
          ${groups.map((_, at) => html`<${NodeGroup} key=${at} path=${[...path, "nodes", at]} number=${at + 1} of=${groups.length} known=${known?.groups[at]} />`)}
          <div class="zone-foot">
            <button type="button" class="small" onClick=${() => set([...path, "nodes"], [...groups, withoutHosts(groups.at(-1))])}>${t("form.add_group")}</button>
            <span class="grow"></span>
            <button type="button" class="small" disabled=${index === 0} onClick=${() => move(-1)} aria-label=${t("form.move_up")} title=${t("form.move_up")}>↑</button>
            <button type="button" class="small" disabled=${index === count - 1} onClick=${() => move(1)} aria-label=${t("form.move_down")} title=${t("form.move_down")}>↓</button>
            <button type="button" class="small danger" onClick=${remove}>${t("form.remove_zone")}</button>
          </div>
        </fieldset>`}
    </details>`;
}

/** The name, taken when the field is left: links and placement follow it, so halves of names must not count. */
function ZoneName({ index }) {
  const { t } = useText();
  const { fields, setAll, noticeAt } = useForm();
  const names = zonesOf(fields).map((zone) => zone?.name);
  const [typed, setTyped] = useState(null);
  const id = `field-cluster-zones-${index}-name`;
  const clash = typed !== null && names.some((name, at) => at !== index && name === typed.trim());
  const empty = typed !== null && !typed.trim();
  const own = clash ? t("form.name_taken", { name: typed.trim() }) : empty ? t("form.name_empty") : null;
  const notice = noticeAt(["cluster", "zones", index, "name"]);
  const take = () => {
    if (typed === null || clash || empty) return;
    if (typed.trim() !== names[index]) setAll(withZoneName(fields, index, typed.trim()));
    setTyped(null);
  };
  return html`
    <div class=${`field ${own || notice ? "error" : ""}`}>
      <div class="field-head"><label for=${id}>${t("field.Zone.name")}</label></div>
      <input id=${id} data-field=${`cluster.zones[${index}].name`} type="text" maxlength="100" autocomplete="off" spellcheck=${false}
        value=${typed ?? String(names[index] ?? "")} aria-invalid=${own || notice ? "true" : null} aria-describedby=${`${id}-note`}
        onInput=${(event) => setTyped(event.target.value)} onChange=${take} />
      <${Note} id=${`${id}-note`} notice=${own ? { message: own, hint: "" } : notice} />
    </div>`;
}

const gpuName = (gpu) => (typeof gpu === "string" ? gpu : (gpu?.name ?? gpu?.like ?? "?"));
/** @param {any} [group] */
const withoutHosts = ({ hosts: _, ...group } = {}) => group;
