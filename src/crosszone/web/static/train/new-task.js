import { html, useEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { fetchJson, postJson } from "../lib/api.js";
import { useAsked } from "../lib/asked.js";
import { useText } from "../lib/text.js";
import { noticeOf } from "./field.js";
import { Allocation } from "./allocation-card.js";
import { Distributed } from "./distributed-card.js";
import { Environments } from "./environments-card.js";
import { Job } from "./job-card.js";
import { useAsking } from "./request.js";
import { Summary } from "./summary-card.js";
import { What } from "./what-card.js";

/** Milliseconds without a change until the selection is looked at anew. */
const PAUSE_MS = 250;
/** Fields that have a place of their own for what is wrong with them, in the order in which the form asks. */
const FIELDS = [
  "taskName", "datasetId", "datasetVersionId", "modelId", "distributedConfig.nodeIds", "allocation", "distributedConfig.masterNode", "distributedConfig.framework",
  "distributedConfig.strategy", "job.steps", "job.seq_len", "job.global_batch", "job.precision", "job.optimizer", "policy.maxRestarts",
];

/**
 * The form of a new task.
 * @param {{environments: import("./entries.js").Entries, datasets: import("./entries.js").Entries, models: import("./entries.js").Entries, address: import("../lib/address.js").Address, change: any, created: (made: {id: string, words: string, details: string}) => void}} given
 */
export function NewTask({ environments, datasets, models, address, change, created }) {
  const { t, amount, language } = useText();
  const asking = useAsking(address, change, environments.entries);
  const entries = environments.entries ?? [];
  const [frameworks, setFrameworks] = useState([]);
  const form = useRef(null);
  useEffect(() => {
    fetchJson("training-frameworks", language).then(setFrameworks, () => {});
  }, [language]);

  const { chosen, predicting, asked } = useChosen(asking, environments.entries);
  const { refused, busy, create } = useCreate(asking.body, async (answer) => {
    const info = answer.data.distributedInfo;
    const name = entries.find((entry) => entry.id === asking.nodes[0])?.value.name;
    const details = info.nodeCount > 1 ? t("train.made_several", { count: amount(info.nodeCount), gpus: amount(info.totalGpus) }) : t("train.made_one", { name });
    asking.clear();
    created({ id: answer.data.taskId, words: answer.message, details });
  });
  useEffect(() => {
    const first = FIELDS.find((name) => noticeOf(refused.notices, name));
    if (!first) return;
    const field = form.current.querySelector(`[data-field="${first}"]`);
    field?.focus({ preventScroll: true });
    field?.scrollIntoView({ block: "center" });
  }, [refused]);
  const apart = refused.notices.filter((notice) => !FIELDS.some((name) => noticeOf([notice], name)));
  return html`
    <form ref=${form} class="train-new" noValidate aria-busy=${predicting ? "true" : null} onSubmit=${(event) => event.preventDefault()}>
      <div class="train-asks">
        <${What} asking=${asking} notices=${refused.notices} datasets=${datasets} models=${models} />
        <${Mode} asking=${asking} />
        ${asking.fresh
          ? html`<${Allocation} asking=${asking} entries=${entries} notices=${refused.notices} />`
          : html`<${Environments} environments=${environments} asking=${asking} notices=${refused.notices} address=${address} change=${change} />`}
        ${asking.several && html`<${Distributed} asking=${asking} notices=${refused.notices} entries=${entries} frameworks=${frameworks} chosen=${chosen} />`}
        <${Job} asking=${asking} notices=${refused.notices} />
      </div>
      <${Summary} asking=${asking} chosen=${chosen} predicting=${predicting} entries=${entries} frameworks=${frameworks}
        notices=${[...apart, ...(asking.ready ? asked.notices : [])]} failed=${refused.failed || asked.failed} busy=${busy} create=${create} />
    </form>`;
}

/** What the server says of what is selected: what it has together at once, what is predicted of it when that is worked out. */
function useChosen(asking, known) {
  const { language } = useText();
  const ask = (sent, signal) => postJson("environments/selection", sent, language, signal);
  const text = asking.ready && known ? JSON.stringify({ ...asking.body, taskName: "" }) : null;
  const brief = asking.ready && known ? JSON.stringify({ launchMode: asking.body.launchMode, distributedConfig: { nodeIds: asking.body.distributedConfig.nodeIds }, allocation: asking.body.allocation ?? [] }) : null;
  const whole = useMemo(() => text && JSON.parse(text), [text, known]);
  const part = useMemo(() => brief && JSON.parse(brief), [brief, known]);
  const asked = useAsked(whole, ask, { pause: PAUSE_MS, also: [language] });
  const together = useAsked(part, ask, { also: [language] });
  const fresh = whole !== null && asked.asked === whole;
  const found = whole && (fresh ? asked.answer : together.asked === part ? together.answer : null);
  return { chosen: found?.selection.nodes ? found : null, predicting: whole !== null && asked.busy, asked };
}

/** On environments that run, or on such that a scheduler is asked for. */
function Mode({ asking }) {
  const { t } = useText();
  const { draft, set } = asking;
  return html`
    <div class="train-modes">
      <div class="segmented" role="group" aria-label=${t("train.launch_mode")}>
        ${["existing", "new"].map((mode) => html`<button type="button" key=${mode} aria-pressed=${String(draft.launchMode === mode)} onClick=${() => set({ launchMode: mode })}>${t(`train.launch.${mode}`)}</button>`)}
      </div>
      <span class="quiet-text">${t(`train.launch_about.${draft.launchMode}`)}</span>
    </div>`;
}

/** Creating a task: the same request has the same key, so that a second click creates no second one. */
function useCreate(body, done) {
  const { language } = useText();
  const [state, setState] = useState({ text: "", notices: [], failed: false });
  const [busy, setBusy] = useState(false);
  const key = useRef({ text: "", value: "" });
  const text = JSON.stringify(body);
  const create = async () => {
    if (key.current.text !== text) key.current = { text, value: newKey() };
    setBusy(true);
    try {
      const answer = await postJson("training-tasks", body, language, undefined, { "Idempotency-Key": key.current.value });
      key.current = { text: "", value: "" };
      setState({ text: "", notices: [], failed: false });
      await done(answer);
    } catch (error) {
      if (!("notices" in error)) throw error;
      setState({ text, notices: error.notices, failed: !error.notices.length });
    } finally {
      setBusy(false);
    }
  };
  const refused = useMemo(() => (state.text === text ? state : { text, notices: [], failed: state.failed }), [state, text]);
  return { refused, busy, create };
}

const newKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
