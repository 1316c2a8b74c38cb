import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "./card.js";
import { Facts } from "./facts.js";
import { More } from "./more.js";
import { TableFrame } from "./table-frame.js";

const DEGREES = ["tp", "pp", "dp", "cp", "ep", "micro_batch", "interleave", "zero", "recompute"];

/** The strategy with what follows from it: ranks, micro-batches, where the ranks run, what stays idle. */
export function StrategyAnswer({ strategy }) {
  const { t, amount, shown } = useText();
  if (!strategy) return html`<${Card} id="strategy" title=${t("strategy.heading")}><p class="empty">${t("strategy.none")}</p><//>`;
  const { settled, pinned, placement, idle } = strategy;
  return html`
    <${Card} id="strategy" title=${t("strategy.heading")}
      aside=${t("strategy.about", { ranks: amount(strategy.ranks), m: amount(strategy.micro_batches) })}>
      <ul class="degrees">
        ${DEGREES.map(
          (key) => html`
            <li key=${key} class=${pinned.includes(key) ? "pinned" : ""} title=${pinned.includes(key) ? t("strategy.pinned") : t("strategy.settled")}>
              <code>${key}</code> <strong>${shown(settled[key])}</strong>
            </li>`,
        )}
      </ul>
      <${Facts} facts=${[
        [t("strategy.ranks"), amount(strategy.ranks)],
        [t("strategy.micro_batches"), amount(strategy.micro_batches)],
        [t("strategy.frameworks"), strategy.frameworks.join(", ") || t("strategy.no_framework")],
      ]} />
      ${placement && html`<${Blocks} placement=${placement} idle=${idle} />`}
      <${AllSettings} settled=${settled} />
    <//>`;
}

/** Which ranks run where, and what stays idle. */
export function Blocks({ placement, idle }) {
  const { t, amount } = useText();
  const title = t("placement.heading");
  return html`
    <h3>${title}</h3>
    <div class="blocks" aria-hidden="true">
      ${placement.blocks.slice(0, 200).map((block) => html`
        <span class="block" style=${{ flexGrow: block.count }} title=${`${block.zone}: ${amount(block.count)}`}><span>${block.zone}</span></span>`)}
      ${idle.map((left) => html`<span class="block idle" style=${{ flexGrow: left.count }} title=${left.reason}></span>`)}
    </div>
    <${TableFrame} label=${title}>
      <thead>
        <tr>
          <th scope="col">${t("placement.zone")}</th>
          <th scope="col" class="number">${t("placement.group")}</th>
          <th scope="col" class="number">${t("placement.first")}</th>
          <th scope="col" class="number">${t("placement.count")}</th>
        </tr>
      </thead>
      <tbody>
        <${More} most=${12} items=${placement.blocks} columns=${4} row=${(block, index) => html`
          <tr key=${index}>
            <th scope="row">${block.zone}</th>
            <td class="number">${block.group ?? 0}</td>
            <td class="number">${amount(block.first ?? 0)}</td>
            <td class="number">${amount(block.count)}</td>
          </tr>`} />
      </tbody>
    <//>
    <h3>${t("placement.idle")}</h3>
    ${idle.length
      ? html`<ul class="plain"><${More} most=${12} items=${idle} row=${(left) => html`<li>${left.reason}</li>`} /></ul>`
      : html`<p class="quiet-text">${t("placement.none_idle")}</p>`}`;
}

/** Every option of a strategy. */
export function AllSettings({ settled }) {
  const { t, shown } = useText();
  const rows = Object.entries(settled).flatMap(([key, value]) =>
    value && typeof value === "object" && !Array.isArray(value)
      ? Object.entries(value).map(([inner, innerValue]) => [`${key}.${inner}`, innerValue])
      : [[key, value]],
  );
  return html`
    <details class="settings">
      <summary>${t("strategy.all")}</summary>
      <dl class="pairs">${rows.map(([key, value]) => html`<div key=${key}><dt><code>${key}</code></dt><dd>${value === null ? t("strategy.automatic") : shown(value)}</dd></div>`)}</dl>
    </details>`;
}
