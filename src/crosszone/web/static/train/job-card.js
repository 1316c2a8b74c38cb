import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { Field, noticeOf } from "./field.js";

/** Fields of the job with the defaults of the server. @type {[string, string][]} */
const JOB = [["steps", "1000"], ["seq_len", "1024"], ["global_batch", ""], ["precision", "bf16"], ["optimizer", "adamw"]];
const PRECISIONS = ["bf16", "fp16", "fp32"];

/** How long and how: steps, samples, precision, restarts. @param {{asking: import("./request.js").Asking, notices: import("../lib/api.js").Notice[]}} given */
export function Job({ asking, notices }) {
  const { t } = useText();
  const { draft, set } = asking;
  const typed = (name) => (event) => set({ [name]: event.target.value });
  return html`
    <${Card} id="train-job" title=${t("train.job")} aside=${t("train.job_about")}>
      <div class="train-fields padded">
        ${JOB.map(([name, usual]) => html`
          <${Field} key=${name} id=${`job-${name}`} name=${`job.${name}`} label=${t(`train.job_field.${name}`)} note=${t(`train.job_help.${name}`)} notice=${noticeOf(notices, `job.${name}`)}
            input=${(common) => name === "precision"
              ? html`
                <select ...${common} value=${draft.precision || usual} onChange=${typed(name)}>
                  ${PRECISIONS.map((one) => html`<option key=${one} value=${one} selected=${one === (draft.precision || usual)}>${one}</option>`)}
                </select>`
              : html`<input ...${common} inputmode=${name === "optimizer" ? null : "numeric"} maxlength="40" autocomplete="off" spellcheck=${false} placeholder=${usual || t("train.eight_a_rank")} value=${draft[name]} onInput=${typed(name)} />`} />`)}
        <${Field} id="job-restarts" name="policy.maxRestarts" label=${t("train.restarts")} note=${t("train.restarts_note")} notice=${noticeOf(notices, "policy.maxRestarts")}
          input=${(common) => html`<input ...${common} inputmode="numeric" maxlength="3" autocomplete="off" placeholder="3" value=${draft.maxRestarts} onInput=${typed("maxRestarts")} />`} />
      </div>
      <label class="train-check padded"><input type="checkbox" checked=${draft.ignorePreflight} onChange=${(event) => set({ ignorePreflight: event.target.checked })} /><span>${t("train.ignore_preflight")}</span></label>
    <//>`;
}
