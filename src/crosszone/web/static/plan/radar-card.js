import { html, useMemo } from "../lib/dom.js";
import { planId, useAnswers } from "../lib/answers.js";
import { postJson } from "../lib/api.js";
import { useAsked } from "../lib/asked.js";
import { runAlone, usePart } from "../lib/requests.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { radarOption } from "../charts/radar.js";
import { RadarAxes } from "./radar-axes.js";

/** Milliseconds without a change until the families, whose plans must be searched, are asked for. */
const PAUSE_MS = 700;
const FAMILIES = ["dp_only", "pp_only"];

/** The shown plan beside dp-only, pp-only and the next best, on computed axes that each open to their formula. */
export function RadarCard() {
  const { t, percent } = useText();
  const { prediction } = useAnswers();
  const tokens = useTokens();
  const { answer, missing, busy } = useRadar();
  const drawn = useMemo(() => answer && radarOption({ axes: answer.axes, entries: answer.entries, tokens, percent }), [answer, tokens, percent]);
  const table = useMemo(
    () => answer && {
      columns: [t("plan.radar.axis"), ...answer.entries.map(({ label }) => label)],
      rows: answer.axes.map(({ id, label }) => [label, ...answer.entries.map(({ values }) => values[id])]),
    },
    [answer, t],
  );
  if (!prediction) return null;
  return html`
    <${Card} id="radar" title=${t("plan.radar.heading")} aside=${t("plan.radar.about")}>
      ${answer
        ? html`
          <${Chart} option=${drawn} table=${table} name="radar" height=${300} label=${t("plan.radar.label", { names: answer.entries.map(({ label }) => label).join(", ") })} />
          <${RadarAxes} radar=${answer} />
          ${missing.map(({ name, label, notices }) => html`<p key=${name} class="table-note">${t("plan.radar.missing", { name: label })} ${notices[0]?.message}</p>`)}`
        : html`<p class="empty" aria-busy=${String(busy)}>${t("plan.radar.waiting")}</p>`}
    <//>`;
}

/** The families are searched once a scenario; which plan is shown changes only what is drawn beside them. */
function useRadar() {
  const { language } = useText();
  const { body, plans, plan, planning } = useAnswers();
  const { body: scenario } = useScenario();
  const search = (sent, signal) => runAlone(() => postJson("radar", sent, language, signal), signal);
  const first = useMemo(() => body && { ...body, ways: [], families: true }, [scenario, body === null]);
  const families = useAsked(planning ? null : first, search, { pause: PAUSE_MS, also: [language] });
  const found = families.answer?.entries.filter(({ name }) => FAMILIES.includes(name)) ?? null;
  const next = plans?.plans.find((one) => !plan || planId(one) !== planId(plan));
  const question = useMemo(() => {
    if (!body || !found) return null;
    const runnerUp = next ? [{ name: "runner_up", way: { framework: next.framework, strategy: next.strategy, placement: next.placement } }] : [];
    return { ...body, options: { ways: [...found.filter(({ way }) => way).map(({ name, way }) => ({ name, way })), ...runnerUp] } };
  }, [body, families.answer, JSON.stringify(next && [next.framework, next.strategy, next.placement])]);
  const { answer, busy } = usePart("radar", question, language);
  return { answer, missing: (found ?? []).filter(({ way }) => !way), busy: busy || families.busy };
}
