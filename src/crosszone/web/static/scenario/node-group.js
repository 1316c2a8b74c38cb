import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Field } from "./field.js";
import { useForm } from "./form.js";
import { useLists } from "./lists.js";

const MORE = ["intra_link", "nvlink_domain", "fabric", "usd_per_gpu_hour", "cpus", "memory_gib", "speed"];

/** Equal machines of a zone. @param {{path: import("../lib/fields.js").Path, number: number, of: number, known: any}} given */
export function NodeGroup({ path, number, of, known }) {
  const { t, amount } = useText();
  const { set, at, noticeAt } = useForm();
  const { gpus } = useLists();
  const field = (key, more = {}) => html`<${Field} key=${key} owner="NodeGroup" path=${[...path, key]} ...${more} />`;
  const shared = at([...path, "nic_gbps"]) !== undefined;
  const failing = MORE.some((key) => noticeAt([...path, key])?.level === "error");
  const placeholders = { nvlink_domain: known ? amount(known.domain) : "", usd_per_gpu_hour: known ? amount(known.usd_per_gpu_hour) : "" };
  return html`
    <fieldset class="group">
      <legend>${t("form.group", { number })}</legend>
      ${of > 1 && html`
        <button type="button" class="link remove" onClick=${() => set(path, undefined)} aria-label=${t("form.remove_group", { number })}>${t("form.remove")}</button>`}
      <div class="fields">
        ${field("count")}
        ${field("gpus")}
        ${field("gpu", { wide: true, list: "known-gpus", names: gpus.map((gpu) => gpu.name), hint: known && known.link })}
        ${field(shared ? "nic_gbps" : "nic_gbps_per_gpu", {
          wide: true,
          hint: known && known.nic_gbps_node !== null && t("form.nic_node", { gbps: amount(known.nic_gbps_node) }),
          after: html`
            <button type="button" class="link swap" onClick=${() => swapNic(at(path), shared, (group) => set(path, group))}>
              ${shared ? t("form.nic_per_gpu") : t("form.nic_shared")}
            </button>`,
        })}
      </div>
      <details class="rest" open=${failing || null}>
        <summary>${t("form.more_fields")}</summary>
        <div class="fields">${MORE.map((key) => field(key, placeholders[key] ? { placeholder: placeholders[key] } : {}))}</div>
      </details>
    </fieldset>`;
}

/** The same number, meant per node in place of per GPU or the other way round. */
function swapNic(group, shared, set) {
  const { nic_gbps: node, nic_gbps_per_gpu: each, ...rest } = group;
  set(shared ? { ...rest, nic_gbps_per_gpu: node } : { ...rest, nic_gbps: each ?? null });
}
