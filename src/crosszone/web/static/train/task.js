import { html } from "../lib/dom.js";
import { deleteJson, postJson } from "../lib/api.js";
import { useText } from "../lib/text.js";
import { useWork } from "../lib/work.js";
import { Card } from "../components/card.js";
import { Refusals } from "../compare/refusals.js";
import { Sure } from "../compare/sure.js";
import { Curves } from "./curves-card.js";
import { Events } from "./events-card.js";
import { RESUMABLE, useTask } from "./live.js";
import { Logs } from "./logs-card.js";
import { Nodes } from "./nodes-card.js";
import { TaskProgress } from "./progress.js";
import { TaskState } from "./state.js";
import { Timeline } from "./states.js";
import { Twin } from "./twin-card.js";

/**
 * One task: how far it is, what it measures beside its prediction, its logs and events; stop, resume, delete.
 * @param {{id: string, made: {words: string, details: string} | null, changed: () => void, left: () => void}} given made: it was created just now; left: it was deleted
 */
export function OpenedTask({ id, made, changed, left }) {
  const { t, language } = useText();
  const opened = useTask(id, language);
  const { busy, said, during } = useWork();
  const { task, live } = opened;
  const path = `training-tasks/${encodeURIComponent(id)}`;
  const act = (what) => () =>
    during(async () => {
      await postJson(`${path}/${what}`, {}, language);
      await opened.reload();
      changed();
    });
  const remove = () => during(() => deleteJson(path, language).then(left));
  return html`
    <div class="train-task" data-opened=${id} aria-busy=${!task && !opened.failed && !opened.notices.length ? "true" : null}>
      ${made && html`<p class="train-made" role="status"><strong>${made.words}</strong> ${made.details}</p>`}
      <${Refusals} notices=${opened.notices} failed=${opened.failed} />
      ${task && html`
        <${Card} id="train-task" title=${task.name} aside=${id}>
          <div class="bar">
            <${TaskState} state=${task.state} stopping=${task.stop_asked} />
            ${task.attempt > 1 && html`<span class="quiet-text">${t("train.attempt", { count: task.attempt })}</span>`}
            ${task.restarts > 0 && html`<span class="quiet-text">${t("train.restarted", { count: task.restarts })}</span>`}
            ${live && !task.driven && html`<span class="train-badge status stopped">${t("train.undriven")}</span>`}
            <span class="grow"></span>
            <span class=${`said ${said?.wrong ? "wrong" : ""}`} role="status">${said?.words}</span>
            ${live && html`<button type="button" disabled=${busy || task.stop_asked || task.state === "stopping"} onClick=${act("stop")}>${t("train.stop")}</button>`}
            ${RESUMABLE.includes(task.state) && html`<button type="button" class="primary" disabled=${busy} onClick=${act("resume")}>${t("train.resume")}</button>`}
            ${!live && html`<${Sure} label=${t("compare.delete")} title=${t("train.delete_title", { name: task.name })} question=${t("train.delete_task_sure", { name: task.name })} act=${remove} />`}
          </div>
          <${Refusals} notices=${task.notice ? [task.notice] : []} />
          <${Timeline} task=${task} events=${opened.events} />
          <${TaskProgress} task=${task} />
        <//>
        <${Curves} task=${task} rows=${opened.rows} />
        <${Twin} twin=${opened.twin} />
        <${Nodes} task=${task} />
        <${Logs} id=${id} live=${live} task=${task} />
        <${Events} events=${opened.events} />`}
    </div>`;
}
