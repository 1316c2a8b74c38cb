import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/** The figures one looks at first. */
export function AnswerStrip({ answer, stale }) {
  const { t, amount, billions, compact } = useText();
  const { model, job, cluster, strategy, legal } = answer;
  const verdict = !legal ? "illegal" : strategy ? "legal" : "open";
  const errors = answer.notices.filter((notice) => notice.level === "error").length;
  const mixed = model.parameters.active !== model.parameters.total;
  const tiles = [
    ["gpus", amount(cluster.gpus), t("strip.nodes", { count: amount(cluster.nodes) })],
    ["zones", amount(cluster.zones.length), t("strip.links", { count: amount(cluster.links.length) })],
    ["parameters", billions(model.parameters.total), mixed ? t("strip.active", { count: billions(model.parameters.active) }) : model.name],
    ["tokens_per_step", amount(job.tokens_per_step), t("strip.batch", { seq: amount(job.seq_len), batch: amount(job.global_batch) })],
    ["steps", amount(job.steps), job.total_tokens ? t("strip.tokens", { count: compact(job.total_tokens) }) : t("strip.endless")],
  ];
  return html`
    <dl class="strip">
      <div class=${`tile verdict ${verdict}`}>
        <dt>${t("strip.verdict")}</dt>
        <dd data-figure="verdict">${t(`strip.${verdict}`)}</dd>
        <dd class="below">${verdict === "illegal" ? t("strip.errors", { count: errors }) : t(`strip.${verdict}_below`)}</dd>
      </div>
      ${tiles.map(
        ([key, value, below]) => html`
          <div class="tile">
            <dt>${t(`strip.${key}`)}</dt>
            <dd data-figure=${key}>${value}</dd>
            <dd class="below">${below}</dd>
          </div>`,
      )}
    </dl>
    <p class="visually-hidden" role="status">
      ${stale ? t("stale") : `${t(`strip.${verdict}`)}. ${tiles.map(([key, value]) => `${t(`strip.${key}`)} ${value}`).join(", ")}`}
    </p>`;
}
