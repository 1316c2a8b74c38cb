// What the server answers for the scenario being edited: the ranked plans, the way that is chosen, and what to expect of it.
// A change is answered twice: at once for the way shown so far, then for the best way under the new circumstances.
import { createContext, useContext, useMemo, useRef, useState } from "./dom.js";
import { streamJson } from "./api.js";
import { useAsked } from "./asked.js";
import { movedText, movedWay, readMoved } from "./moved.js";
import { runAlone, usePart } from "./requests.js";

/** Milliseconds without a change until plans are looked for. */
const PLAN_PAUSE_MS = 40;
const OBJECTIVES = ["time", "cost", "memory", "energy"];
/** The id of the strategy as the scenario writes it. */
export const GIVEN = "given";
/** The id of a plan that was changed by hand. */
export const OWN = "own";

/**
 * @typedef {object} AnswersState
 * @property {any} plans the answer of /plan, the last good one; null: none yet
 * @property {{what: string, done: number, of: number} | null} planning how far the search is; null: it is done
 * @property {import("./api.js").Notice[]} planNotices why there is no plan
 * @property {string | null} chosen id of the way shown: a rank ("1"), "L1" for local updates, "given", "own" (changed by hand)
 * @property {any} plan the chosen plan of `plans`; null for "given" and "own" or while there is none
 * @property {{moved: import("./moved.js").Moved, plan: any} | null} own what was changed by hand, and the plan it was changed from; null: nothing
 * @property {{framework: string, strategy: any, placement: any} | null} way how it is done; null: as the scenario says
 * @property {any} body what to send to ask about what is shown: the scenario and the way; null: nothing is shown
 * @property {any} prediction of the way shown under the present scenario
 * @property {any} traffic its communication report
 * @property {boolean} stale what is shown is not of the present scenario
 * @property {boolean} busy an answer is on its way
 * @property {import("./api.js").Notice[]} notices why the way shown cannot be predicted
 * @property {string} objective what plans are ranked by
 * @property {(id: string) => void} choose show another way
 * @property {(moved: import("./moved.js").Moved) => void} move change a plan by hand, and show it
 * @property {(objective: string) => void} rankBy rank by something else
 * @property {() => void} cancel stop the search
 * @property {boolean} stopped the search was stopped: the plans are of an earlier scenario, or there are none
 * @property {() => void} resume search after all
 */

export const AnswersContext = createContext(null);

/** @returns {AnswersState} */
export const useAnswers = () => useContext(AnswersContext);

/** Rank of a plan as it stands in links: 1, 2, ... or L1. @param {any} plan */
export const planId = (plan) => (plan.kind === "local update" ? `L${plan.rank}` : String(plan.rank));

/** @param {import("./scenario.js").ScenarioState} scenario @param {import("./address.js").Address} address @param {any} change @param {string} language @returns {AnswersState} */
export function useAnswersState(scenario, address, change, language) {
  const [planning, setPlanning] = useState(null);
  const [stopped, setStopped] = useState(null);
  const stop = useRef(() => {});
  const objective = OBJECTIVES.includes(address.objective) ? address.objective : "time";
  const hasStrategy = Boolean(scenario.fields?.strategy);
  const question = useMemo(() => scenario.body && { ...scenario.body, objective, top: 6 }, [scenario.body, objective]);

  const searched = useAsked(
    question === stopped ? null : question,
    (sent, signal) => {
      const own = new AbortController();
      signal.addEventListener("abort", () => own.abort());
      stop.current = () => own.abort();
      setPlanning({ what: "scoring", done: 0, of: 1 });
      return runAlone(() => streamJson("plan", sent, language, { onProgress: setPlanning, signal: own.signal }), own.signal).finally(
        () => !signal.aborted && setPlanning(null),
      );
    },
    { pause: PLAN_PAUSE_MS, also: [language] },
  );
  const plans = searched.answer;
  const all = useMemo(() => (plans ? [...plans.plans, ...plans.local_updates] : []), [plans]);
  const wanted = address.plan;
  const own = useMemo(() => ownOf(all, address.moved), [all, address.moved]);
  const shownOwn = wanted === OWN && own !== null;
  const plan = shownOwn || (wanted === GIVEN && hasStrategy) ? null : (all.find((one) => planId(one) === wanted) ?? all[0] ?? null);
  const given = plan === null && !shownOwn && hasStrategy;
  const found = shownOwn ? own.way : plan && { framework: plan.framework, strategy: plan.strategy, placement: plan.placement };
  const way = useMemo(() => found, [JSON.stringify(found)]);
  const body = useMemo(
    () => (scenario.body && (way || given) ? (way ? { ...scenario.body, way } : scenario.body) : null),
    [scenario.body, way, given],
  );
  const predicted = usePart("predict", body, language);
  const reported = usePart("traffic", body, language);
  return {
    plans,
    planning,
    planNotices: searched.notices,
    chosen: plan ? planId(plan) : shownOwn ? OWN : given ? GIVEN : null,
    plan,
    own,
    way,
    body,
    prediction: predicted.answer,
    traffic: reported.answer,
    stale: predicted.answer !== null && (predicted.asked !== body || reported.asked !== body || searched.asked !== question),
    busy: predicted.busy || reported.busy || planning !== null,
    notices: searched.busy ? [] : predicted.notices.length ? predicted.notices : reported.notices, // the way shown so far may not fit what was changed; a new one is on its way
    objective,
    choose: (id) => change({ plan: id }, { step: false }),
    move: (moved) => change({ plan: OWN, moved: movedText(moved) }, { step: false }),
    rankBy: (next) => change({ objective: next === "time" ? null : next, plan: null }, { step: false }),
    cancel: () => {
      stop.current();
      setPlanning(null);
      setStopped(question);
    },
    stopped: question !== null && question === stopped,
    resume: () => setStopped(null),
  };
}

/** What the address says was changed by hand, where the plan it was changed from still takes it. */
function ownOf(all, text) {
  const moved = readMoved(text);
  const plan = moved && all.find((one) => planId(one) === moved.base);
  const way = plan && movedWay(plan, moved);
  return way ? { moved, plan, way } : null;
}
