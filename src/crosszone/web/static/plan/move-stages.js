import { html, useMemo } from "../lib/dom.js";
import { planId, useAnswers } from "../lib/answers.js";
import { usePart } from "../lib/requests.js";
import { useText } from "../lib/text.js";
import { TableFrame } from "../components/table-frame.js";
import { usePlanWords } from "./words.js";

/** Layers moved from stage to stage, and blocks of GPUs put in another order: the result is predicted at once. @param {{places: any}} given */
export function MoveStages({ places }) {
  const { t, amount } = useText();
  const { plan, own, way, chosen, move, choose } = useAnswers();
  const base = chosen === "own" ? own.plan : plan;
  if (!base || !places || !way?.placement) return null;
  const blocks = way.placement.blocks;
  const start = { base: planId(base), layers: null, order: null, ...(chosen === "own" ? own.moved : {}) };
  const layers = start.layers ?? places.layers;
  const order = start.order ?? blocks.map((_, at) => at);
  const shift = (from, to) => move({ ...start, layers: layers.map((count, at) => count + (at === to ? 1 : at === from ? -1 : 0)) });
  const swap = (at) => move({ ...start, order: order.map((position, place) => (place === at ? order[at + 1] : place === at + 1 ? order[at] : position)) });
  if (layers.length < 2 && blocks.length < 2) return html`<p class="table-note">${t("plan.move.nothing")}</p>`;
  const chunks = layers.length / places.stages.length;
  return html`
    <div class="move">
      <h3>${t("plan.move.heading")}</h3>
      <p class="hint">${t("plan.move.about")}</p>
      ${layers.length > 1 && html`
        <${TableFrame} label=${t("plan.move.layers")}>
          <thead><tr><th scope="col">${t("plan.move.stage")}</th><th scope="col">${t("plan.move.zones")}</th><th scope="col" class="number">${t("plan.move.layers")}</th><th scope="col">${t("plan.move.give")}</th></tr></thead>
          <tbody>
            ${layers.map((count, at) => html`
              <tr key=${at} data-stage=${at}>
                <th scope="row">${at}</th>
                <td>${chunks === 1 ? places.stages[at].zones.join(", ") : "-"}</td>
                <td class="number">${amount(count)}</td>
                <td>
                  <button type="button" class="small" disabled=${at === 0 || count === 0} aria-label=${t("plan.move.back", { stage: at })} title=${t("plan.move.back", { stage: at })} onClick=${() => shift(at, at - 1)}><span aria-hidden="true">↑</span></button>
                  ${" "}<button type="button" class="small" disabled=${at === layers.length - 1 || count === 0} aria-label=${t("plan.move.on", { stage: at })} title=${t("plan.move.on", { stage: at })} onClick=${() => shift(at, at + 1)}><span aria-hidden="true">↓</span></button>
                </td>
              </tr>`)}
          </tbody>
        <//>`}
      ${blocks.length > 1 && html`
        <ol class="block-order" aria-label=${t("plan.move.order")}>
          ${blocks.map((block, at) => html`
            <li key=${at}><strong>${block.zone}</strong> ${t("plan.move.gpus", { count: amount(block.count) })}
              ${at < blocks.length - 1 && html`<button type="button" class="small" aria-label=${t("plan.move.swap", { one: block.zone, other: blocks[at + 1].zone })} title=${t("plan.move.swap", { one: block.zone, other: blocks[at + 1].zone })} onClick=${() => swap(at)}><span aria-hidden="true">⇄</span></button>`}
            </li>`)}
        </ol>`}
      ${chosen === "own" && html`<p class="plan-line"><${Against} /> <button type="button" class="link" onClick=${() => choose(own.moved.base)}>${t("plan.move.undo")}</button></p>`}
    </div>`;
}

/** What the changes cost against the plan they began with; the server tells the difference. */
function Against() {
  const { t, amount, language } = useText();
  const { own, body } = useAnswers();
  const { nameOf } = usePlanWords();
  const question = useMemo(() => {
    const { framework, strategy, placement } = own.plan;
    return body && { ...body, options: { items: [{ way: { framework, strategy, placement } }, { way: body.way ?? null }] } };
  }, [own, body]);
  const { answer, asked } = usePart("compare", question, language);
  if (!answer || asked !== question) return null;
  const { difference, verdict } = answer.figures.find(({ name }) => name === "step_time_s").cells[1];
  const words = t("plan.move.against", { seconds: `${difference > 0 ? "+" : ""}${amount(difference)}`, plan: nameOf(own.moved.base) });
  return html`<strong class=${verdict === "worse" ? "wrong" : ""} data-difference=${difference} role="status">${words}</strong>`;
}
