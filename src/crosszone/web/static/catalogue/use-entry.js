import { html, useState } from "../lib/dom.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";

/**
 * Puts an entry into the scenario being edited and shows what that gives.
 * @param {{kind: string, name: string, change: (changes: any) => void}} given
 */
export function UseEntry({ kind, name, change }) {
  const { t } = useText();
  const scenario = useScenario();
  const [chosen, setChosen] = useState("0");
  const targets = targetsOf(kind, scenario.fields, t);
  if (!targets.length) return null;
  const use = () => {
    const { path } = targets[Number(chosen)] ?? targets[0];
    scenario.setField(path, name);
    change({ place: null, kind: null, filter: null, entry: null, plan: null });
  };
  return html`
    <div class="use">
      ${targets.length > 1 && html`
        <select aria-label=${t("catalogue.use_where")} value=${chosen} onChange=${(event) => setChosen(event.target.value)}>
          ${targets.map(({ label }, index) => html`<option key=${index} value=${String(index)}>${label}</option>`)}
        </select>`}
      <button type="button" onClick=${use}>${t("catalogue.use")}</button>
    </div>`;
}

/** Where the scenario may name an entry of a kind. */
function targetsOf(kind, fields, t) {
  if (!fields) return [];
  if (kind === "models") return [{ path: ["model"], label: "" }];
  const zones = Array.isArray(fields.cluster?.zones) ? fields.cluster.zones : [];
  const named = zones.map((zone, index) => ({ zone, index })).filter(({ zone }) => zone && typeof zone === "object");
  if (kind === "regions") return named.map(({ zone, index }) => ({ path: ["cluster", "zones", index, "region"], label: zone.name }));
  return named.flatMap(({ zone, index }) =>
    (Array.isArray(zone.nodes) ? zone.nodes : []).map((group, place) => ({
      path: ["cluster", "zones", index, "nodes", place, "gpu"],
      label: t("catalogue.use_group", { zone: zone.name, nodes: group?.count ?? 1, gpus: group?.gpus ?? 1 }),
    })),
  );
}
