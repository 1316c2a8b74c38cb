import { html, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Lists, ListsContext, useListsState } from "../scenario/lists.js";
import { useEntries } from "./entries.js";
import { LIVE } from "./live.js";
import { NewTask } from "./new-task.js";
import { OpenedTask } from "./task.js";
import { Tasks, useTasks } from "./tasks-card.js";

/**
 * Train: choose environments and start a task on them; look at the tasks that there are.
 * @param {{address: import("../lib/address.js").Address, change: any}} given
 */
export function TrainPlace({ address, change }) {
  const { t, amount, language } = useText();
  const lists = useListsState();
  const environments = useEntries("environments", language);
  const datasets = useEntries("datasets", language);
  const models = useEntries("training-models", language);
  const tasks = useTasks(language);
  const [made, setMade] = useState(null);
  const shown = address.task ? "task" : address.tab === "tasks" ? "tasks" : "new";
  const live = tasks.tasks?.filter((task) => LIVE.includes(task.state)).length ?? 0;
  const go = (tab) => change({ tab: tab === "tasks" ? "tasks" : null, task: null });
  const open = (task) => change({ task });
  const created = (told) => {
    setMade(told);
    tasks.load();
    open(told.id);
  };
  const waiting = !environments.entries && !environments.failed && !environments.notices.length;
  return html`
    <${ListsContext.Provider} value=${lists}>
      <div class="answers train" data-place="train" aria-busy=${waiting ? "true" : null}>
        <h2 class="visually-hidden">${t("places.train")}</h2>
        <div class="train-tabs">
          <div class="segmented" role="group" aria-label=${t("train.views")}>
            <button type="button" aria-pressed=${String(shown === "new")} onClick=${() => go("new")}>${t("train.new_task")}</button>
            <button type="button" aria-pressed=${String(shown === "tasks")} onClick=${() => go("tasks")}>${t("train.tasks_count", { count: amount(tasks.total) })}</button>
          </div>
          ${live > 0 && html`<span class="quiet-text">${t("train.live", { count: amount(live) })}</span>`}
        </div>
        ${shown === "new" && html`<${NewTask} environments=${environments} datasets=${datasets} models=${models} address=${address} change=${change} created=${created} />`}
        ${shown === "tasks" && html`<${Tasks} tasks=${tasks} entries=${environments.entries ?? []} open=${open} create=${() => go("new")} />`}
        ${shown === "task" && html`
          <${OpenedTask} key=${address.task} id=${address.task} made=${made?.id === address.task ? made : null} changed=${tasks.load} left=${() => (tasks.load(), go("tasks"))} />`}
        <${Lists} />
      </div>
    <//>`;
}
