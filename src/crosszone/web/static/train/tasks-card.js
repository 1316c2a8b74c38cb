import { html, useCallback, useEffect, useState } from "../lib/dom.js";
import { linkTo } from "../lib/address.js";
import { fetchJson } from "../lib/api.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { TableFrame } from "../components/table-frame.js";
import { Refusals } from "../compare/refusals.js";
import { LIVE, useEvery } from "./live.js";
import { TaskState } from "./state.js";
import { useWords } from "./words.js";

const PAGE = 50;

/** The tasks, asked for again while one of them is live. @param {string} language */
export function useTasks(language) {
  const [state, setState] = useState({ tasks: null, before: null, total: 0, notices: [], failed: false });
  const load = useCallback(
    async (before = "") => {
      try {
        const { entries, before: further, total } = await fetchJson(`training-tasks?limit=${PAGE}${before ? `&before=${encodeURIComponent(before)}` : ""}`, language);
        setState((old) => ({ tasks: before ? [...old.tasks, ...entries] : entries, before: further, total, notices: [], failed: false }));
      } catch (error) {
        setState((old) => ({ ...old, notices: error.notices ?? [], failed: !error.notices?.length }));
      }
    },
    [language],
  );
  useEffect(() => void load(), [load]);
  useEvery(() => load(), Boolean(state.tasks?.some((task) => LIVE.includes(task.state))) && (state.tasks?.length ?? 0) <= PAGE, 3000);
  return { ...state, load };
}

/** All tasks, newest first. @param {{tasks: any, entries: import("./entries.js").Entry[], open: (id: string) => void, create: () => void}} given */
export function Tasks({ tasks, entries, open, create }) {
  const { t } = useText();
  const rows = tasks.tasks;
  return html`
    <${Card} id="train-tasks" title=${t("train.tasks")} aside=${t("train.tasks_about")}>
      <${Refusals} notices=${tasks.notices} failed=${tasks.failed} />
      ${rows?.length === 0 && html`
        <div class="train-first"><p>${t("train.no_tasks")}</p><div class="train-ways"><button type="button" class="primary" onClick=${create}>${t("train.to_new")}</button></div></div>`}
      ${rows?.length > 0 && html`
        <${TableFrame} label=${t("train.tasks")}>
          <thead>
            <tr>
              ${["name", "state", "nodes"].map((name) => html`<th scope="col" key=${name}>${t(`train.column.${name}`)}</th>`)}
              ${["step", "loss", "tokens"].map((name) => html`<th scope="col" key=${name} class="number">${t(`train.column.${name}`)}</th>`)}
              <th scope="col">${t("train.column.created")}</th>
            </tr>
          </thead>
          <tbody>${rows.map((task) => html`<${Row} key=${task.id} task=${task} entries=${entries} open=${open} />`)}</tbody>
        <//>`}
      ${tasks.before && html`<div class="bar"><button type="button" onClick=${() => tasks.load(tasks.before)}>${t("compare.older")}</button></div>`}
    <//>`;
}

function Row({ task, entries, open }) {
  const { t, amount } = useText();
  const short = (value) => (value === null || value === undefined ? "-" : amount(Number(value.toPrecision(4))));
  const words = useWords();
  const { progress, request } = task;
  const nodes = request.distributedConfig?.nodeIds ?? [];
  const steps = request.job?.steps ?? 1000;
  const predicted = usePredicted(task);
  const nameOf = (id) => entries.find((entry) => entry.id === id)?.value.name ?? id;
  const go = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    open(task.id);
  };
  return html`
    <tr data-task=${task.id}>
      <th scope="row"><a href=${linkTo({ task: task.id })} onClick=${go}>${task.name}</a></th>
      <td><${TaskState} state=${task.state} stopping=${task.stop_asked} /></td>
      <td>${nodes.length > 3 ? t("train.nodes_count", { count: amount(nodes.length) }) : nodes.map(nameOf).join(", ") || "-"}</td>
      <td class="number">${progress.step === undefined ? "-" : t("train.step_of", { step: amount(progress.step), steps: amount(steps) })}</td>
      <td class="number">${short(progress.loss)}</td>
      <td class="number">${short(progress.tokens_per_s)}${predicted && html`<span class="below">${t("train.predicted_short", { value: short(predicted) })}</span>`}</td>
      <td><time datetime=${task.created}>${words.when(task.created)}</time></td>
    </tr>`;
}

/** Tokens a second that were predicted of a task: asked for once it has a plan. */
function usePredicted(task) {
  const [found, setFound] = useState(null);
  const planned = task.progress.step !== undefined;
  useEffect(() => {
    let wanted = true;
    if (planned) fetchJson(`training-tasks/${encodeURIComponent(task.id)}`).then((body) => wanted && setFound(body.prediction?.tokens_per_s.expected ?? null), () => {});
    return () => (wanted = false);
  }, [task.id, task.attempt, planned]);
  return found;
}
