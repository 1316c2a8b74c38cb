import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Bars } from "./bars.js";
import { Card } from "./card.js";
import { Facts } from "./facts.js";

/** The model's parameters by part, and what a token costs. */
export function ModelParameters({ model, job }) {
  const { t, amount } = useText();
  const state = job.state_bytes_per_parameter;
  return html`
    <${Card} id="model" title=${t("model.heading")} aside=${model.name}>
      <${Facts} facts=${[
        [t("model.layers"), amount(model.layers)],
        [t("model.hidden"), amount(model.hidden)],
        [t("model.attention"), `${model.attention.toUpperCase()} ${model.heads}/${model.kv_heads}`],
        [t("model.ffn"), amount(model.ffn_hidden)],
        [t("model.vocab"), amount(model.vocab)],
        [t("model.flops"), `${amount(model.training_flops_per_token / 1e12)} TFLOP`],
        [t("model.precision"), job.precision],
        [t("model.optimizer"), job.optimizer],
        [t("model.state"), `${amount(state.total)} B`],
        [t("model.framework"), job.framework],
      ]} />
      <${Bars} label=${t("model.heading")} counted=${model.parameters} />
    <//>`;
}
