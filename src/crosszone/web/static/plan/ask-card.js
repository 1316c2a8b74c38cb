import { html, useMemo, useRef, useState } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { streamJson } from "../lib/api.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { frontOption } from "../charts/front.js";
import { usePlanWords } from "./words.js";

/** Questions that take longer, asked when wanted: time against money, and where local updates begin to win. */
export function AskCard() {
  const { t } = useText();
  const { description } = useScenario();
  const zones = description?.cluster.zones.length ?? 0;
  return html`
    <${Card} id="ask" title=${t("plan.ask.heading")} aside=${t("plan.ask.about")}>
      <${Asked} key="front" button=${t("plan.ask.front")} how=${{ front: true, top: 1 }} shown=${(plans) => html`<${Front} points=${plans.front} />`} />
      ${zones > 1 && html`<${Asked} key="crossover" button=${t("plan.ask.crossover")} how=${{ crossover: true, top: 1 }} shown=${(plans) => html`<${Crossing} found=${plans.crossover} />`} />`}
    <//>`;
}

/** A button, how far its answer is, and the answer. */
function Asked({ button, how, shown }) {
  const { t, label, language } = useText();
  const { body } = useScenario();
  const { objective } = useAnswers();
  const [state, setState] = useState({ of: null, plans: null, progress: null, notices: [] });
  const stop = useRef(null);
  const ask = async () => {
    const control = new AbortController();
    stop.current = control;
    setState({ of: null, plans: null, notices: [], progress: { what: "scoring", done: 0, of: 1 } });
    const told = (progress) => setState((old) => ({ ...old, progress }));
    try {
      const plans = await streamJson("plan", { ...body, objective, ...how }, language, { onProgress: told, signal: control.signal });
      setState({ of: body, plans, progress: null, notices: [] });
    } catch (error) {
      setState({ of: null, plans: null, progress: null, notices: error.name === "AbortError" ? [] : error.notices ?? [] });
    }
  };
  const { progress, plans, notices } = state;
  return html`
    <div class="asked">
      <p class="plan-line">
        <button type="button" disabled=${!body || progress !== null} onClick=${ask}>${button}</button>
        ${progress && html`<progress max=${Math.max(progress.of, 1)} value=${progress.done} aria-label=${label(`progress_${progress.what}`)}></progress> <button type="button" class="link" onClick=${() => stop.current.abort()}>${t("plan.cancel")}</button>`}
        ${plans && state.of !== body && html`<span class="hint" role="status">${t("plan.ask.old")}</span>`}
      </p>
      ${notices.map((notice) => html`<p class="table-note wrong" role="alert">${notice.message} <span class="hint">${notice.hint}</span></p>`)}
      ${plans && html`<div class=${state.of === body ? "" : "faded"}>${shown(plans)}</div>`}
    </div>`;
}

/** Plans that no other beats in both time and money. */
function Front({ points }) {
  const { t, label, amount } = useText();
  const { degrees, framework } = usePlanWords();
  const tokens = useTokens();
  const option = useMemo(() => {
    const named = points.map((one) => ({ ...one, name: `${framework(one.framework)} ${degrees(one.strategy)}\n${amount(one.gpus)} GPU, ${amount(one.step_s)} s, ${amount(one.usd_per_step)} $` }));
    return frontOption({ points: named, tokens, words: { step: label("step_s"), usd: label("value_cost"), written: amount } });
  }, [points, tokens, amount]);
  if (!points.length) return html`<p class="table-note">${label("front_none")}</p>`;
  const table = {
    columns: [t("plan.map.gpus"), t("plan.table.framework"), t("plan.table.degrees"), label("step_s"), label("value_cost")],
    rows: points.map((one) => [one.gpus, framework(one.framework), degrees(one.strategy), one.step_s, one.usd_per_step]),
  };
  return html`<p class="table-note">${label("front_title")}</p><${Chart} option=${option} table=${table} name="front" height=${240} label=${label("front_title")} />`;
}

/** The rate between zones at which plans with local updates and synchronous ones take equally long. */
function Crossing({ found }) {
  const { label, amount } = useText();
  const { said } = usePlanWords();
  const winner = (side) => label(side === null ? "crossover_equal" : `crossover_${side}`);
  if (!found) return html`<p class="table-note">${label("crossover_missing")}</p>`;
  if (found.factor === null) return html`<p class="table-note">${said("crossover_never", { winner: winner(found.above) })}</p>`;
  return html`
    <p class="table-note">${said("crossover_at", { factor: amount(found.factor), below: winner(found.below), above: winner(found.above) })}</p>
    <ul class="sentences">${Object.entries(found.gbps).map(([link, rate]) => html`<li key=${link}>${link}: ${amount(rate)} Gbit/s</li>`)}</ul>`;
}
