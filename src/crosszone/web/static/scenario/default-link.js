import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Field } from "./field.js";
import { useForm } from "./form.js";

const KEYS = ["gbps", "rtt_ms", "jitter_ms", "loss_pct", "usd_per_gb", "flow_gbps"];

/** Figures of every pair that is not listed. */
export function DefaultLink() {
  const { t } = useText();
  const { at, set } = useForm();
  const path = ["cluster", "default_link"];
  const given = at(path) ?? null;
  const setOne = (key) => (value) => {
    const next = { ...given, [key]: value };
    if (value === undefined) delete next[key];
    set(path, Object.keys(next).length ? next : undefined);
  };
  return html`
    <details class="rest" open=${given !== null || null}>
      <summary data-field="cluster.default_link">${t("form.default_link")}</summary>
      <p class="quiet-text">${t("form.default_link_about")}</p>
      <div class="fields">
        ${KEYS.map((key) => html`<${Field} key=${key} owner="Link" path=${[...path, key]} onSet=${setOne(key)} placeholder=${t("form.derived")} />`)}
      </div>
    </details>`;
}
