import { html, useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Facts } from "../components/facts.js";
import { Field } from "./field.js";
import { useForm } from "./form.js";
import { useLists } from "./lists.js";
import { keysOf } from "./shape.js";
import { Slider, doublings } from "./slider.js";

/** What to train: lengths, batch, numbers and software. */
export function JobStep() {
  const { t, amount, compact } = useText();
  const { at, set, schema, description } = useForm();
  const { stacks } = useLists();
  const lengths = useMemo(() => doublings(512, 1 << 20), []);
  const batches = useMemo(() => doublings(8, 1 << 16), []);
  const path = (key) => ["job", key];
  const slider = (key, stops) => html`
    <${Slider} stops=${stops} value=${at(path(key))} set=${(value) => set(path(key), value)} name=${key} label=${t(`field.Job.${key}`)} write=${amount} />`;
  const field = (key, more = {}) => html`<${Field} key=${key} owner="Job" path=${path(key)} ...${more} />`;
  const large = (key) => (typeof at(path(key)) === "number" ? { hint: compact(at(path(key))) } : {});
  const job = description?.job;
  return html`
    <fieldset>
      <legend>${t("form.batch")}</legend>
      <div class="fields">
        ${field("seq_len", { wide: true, children: slider("seq_len", lengths) })}
        ${field("global_batch", { wide: true, children: slider("global_batch", batches) })}
      </div>
    </fieldset>
    <fieldset>
      <legend>${t("form.run")}</legend>
      <div class="fields">
        ${field("tokens", { placeholder: t("form.one_step"), wide: true, ...large("tokens") })}
        ${field("corpus_tokens", large("corpus_tokens"))}
        ${field("epochs")}
      </div>
    </fieldset>
    <fieldset>
      <legend>${t("form.software")}</legend>
      <div class="fields">
        ${field("precision")}${field("optimizer")}${field("framework")}
        ${field("stack", { list: "known-stacks", names: stacks.map((stack) => stack.name), placeholder: t("form.automatic") })}
      </div>
    </fieldset>
    <details class="rest" open=${Boolean(at(path("software")))}><summary>${t("form.switches")}</summary>
      <div class="fields">${keysOf(schema, "Software").map((key) => html`<${Field} key=${key} owner="Software" path=${["job", "software", key]} />`)}</div>
    </details>
    ${job && html`
      <${Facts} facts=${[
        [t("strip.tokens_per_step"), amount(job.tokens_per_step)],
        [t("strip.steps"), amount(job.steps)],
        [t("form.state_bytes"), amount(job.state_bytes_per_parameter.total)],
      ]} />`}`;
}
