import { html } from "../lib/dom.js";
import { Figure } from "../components/figure.js";
import { useText } from "../lib/text.js";
import { useWords } from "./words.js";

/** The answer first: how much of the step is communication, over which link, and what that makes of the job. */
export function Verdict({ prediction, traffic, zones, plan }) {
  const { t, label, amount } = useText();
  const { share, link } = useWords();
  const { scaling } = traffic;
  const bound = label(`bound_${traffic.boundness}`);
  const tiles = [
    ["communication_share", share(traffic.communication_share), t("communication.exposed_of", { exposed: amount(traffic.exposed_s), step: amount(traffic.step_s) })],
    ["ratio", traffic.compute_to_communication === null ? "-" : `${amount(traffic.compute_to_communication)} : 1`, bound],
    ["bottleneck", label(`class_${traffic.bottleneck}`), t("communication.bottleneck_share", { share: share(prediction.shares[traffic.bottleneck]) })],
    ["one_zone", share(scaling.one_zone), scaling.one_zone === null ? t("communication.in_one_zone") : t("communication.would_be", { tokens: amount(scaling.one_zone_tokens_per_s) })],
    ["one_gpu", share(scaling.one_gpu), scaling.one_gpu === null ? t("communication.no_such") : t("communication.would_be", { tokens: amount(scaling.one_gpu_tokens_per_s) })],
  ];
  return html`
    <section class="verdict-card" aria-labelledby="communication-verdict">
      <h2 id="communication-verdict" class=${`verdict-line ${traffic.boundness}`} data-verdict=${traffic.boundness}>${sentence()}</h2>
      <dl class="strip">
        ${tiles.map(([key, value, below]) => html`
          <div class="tile" key=${key}>
            <dt>${t(`communication.tile.${key}`)}</dt>
            <dd data-figure=${key}>${value}</dd>
            <dd class="below" title=${below}>${below}</dd>
          </div>`)}
        <div class="tile">
          <dt>${t("communication.tile.step")}</dt>
          <dd data-figure="step"><${Figure} path="step_time_s.expected">${amount(prediction.step_time_s.expected)} s<//></dd>
          <dd class="below">${t("communication.tokens", { tokens: amount(prediction.tokens_per_s.expected) })}</dd>
        </div>
      </dl>
      <${Shares} shares=${prediction.shares} />
    </section>`;

  function sentence() {
    if (prediction.gpus === 1) return t("communication.verdict.one_gpu");
    const facts = { share: share(traffic.communication_share), bound };
    const busiest = traffic.links[0];
    if (busiest)
      return t("communication.verdict.link", {
        ...facts, link: link(busiest.link), gbps: amount(busiest.gbps), busy: amount(busiest.busy_s), step: amount(traffic.step_s),
      });
    if (!prediction.communication.length) return t("communication.verdict.silent");
    if (zones > 1) return t("communication.verdict.stays", { ...facts, zones: plan?.zones.join(label("comma")) ?? "-" });
    return t("communication.verdict.one_zone", facts);
  }
}

/** The step by class of work, as one bar. */
function Shares({ shares }) {
  const { t, label } = useText();
  const { share } = useWords();
  const parts = Object.entries(shares).filter(([, part]) => part > 0);
  return html`
    <div class="shares">
      <div class="shares-bar" role="img" aria-label=${`${t("communication.shares")}: ${parts.map(([name, part]) => `${label(`class_${name}`)} ${share(part)}`).join(", ")}`}>${parts.map(([name, part]) => html`<span key=${name} class=${`class-${name}`} style=${{ flexGrow: part }}></span>`)}</div>
      <ul class="legend">${parts.map(([name, part]) => html`<li key=${name}><i class=${`class-${name}`}></i>${label(`class_${name}`)} <strong><${Figure} path=${`shares.${name}`}>${share(part)}<//></strong></li>`)}</ul>
    </div>`;
}
