import { html, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { DefaultLink } from "./default-link.js";
import { useForm } from "./form.js";
import { LinkMatrix } from "./link-matrix.js";
import { Zone } from "./zone.js";
import { withZone, zonesOf } from "./zone-edits.js";

/** Zones with their machines, and the links between them. */
export function ClusterStep() {
  const { t } = useText();
  const { fields, setAll, set, description } = useForm();
  const zones = zonesOf(fields);
  const [open, setOpen] = useState(zones.length === 1 ? 0 : null);
  if (typeof fields.cluster?.file === "string") {
    const here = description?.scenario.cluster;
    return html`
      <div class="empty-state">
        <p>${t("form.cluster_file", { file: fields.cluster.file })}</p>
        <button type="button" disabled=${!here} onClick=${() => set(["cluster"], here)}>${t("form.cluster_here")}</button>
      </div>`;
  }
  const add = () => {
    setAll(withZone(fields, t("form.zone_stem")));
    setOpen(zones.length);
  };
  return html`
    <section aria-labelledby="zones-title">
      <div class="part-head">
        <h3 id="zones-title" data-field="cluster.zones" tabindex="-1">${t("form.zones", { count: zones.length })}</h3>
        <button type="button" class="small" onClick=${add}>${t("form.add_zone")}</button>
      </div>
      ${zones.length === 0 && html`<p class="empty">${t("form.no_zones")}</p>`}
      ${zones.map((zone, index) => html`
        <${Zone} key=${index} zone=${zone ?? {}} index=${index} count=${zones.length} open=${open === index} show=${(shown) => setOpen(shown)} />`)}
    </section>
    ${zones.length > 1 && html`<${LinkMatrix} zones=${zones} />`}
    ${zones.length > 1 && html`<${DefaultLink} />`}`;
}
