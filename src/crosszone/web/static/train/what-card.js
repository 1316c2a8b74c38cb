import { html, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { useLists } from "../scenario/lists.js";
import { DatasetForm } from "./dataset-form.js";
import { EntryForm } from "./entry-form.js";
import { Field, noticeOf } from "./field.js";
import { MODEL } from "./forms.js";
import { Panel } from "./panel.js";

/**
 * What is trained on what: name, dataset and version, model.
 * @param {{asking: import("./request.js").Asking, notices: import("../lib/api.js").Notice[], datasets: import("./entries.js").Entries, models: import("./entries.js").Entries}} given
 */
export function What({ asking, notices, datasets, models }) {
  const { t, billions } = useText();
  const { models: catalogue } = useLists();
  const [open, setOpen] = useState(null);
  const { draft, set } = asking;
  const dataset = datasets.entries?.find((entry) => entry.id === draft.datasetId);
  const versions = dataset?.value.versions ?? [];
  const chooseDataset = (id, entry = datasets.entries.find((one) => one.id === id)) => set({ datasetId: id, datasetVersionId: entry?.value.versions.at(-1).id ?? "" });
  const savedDataset = (made) => (setOpen(null), chooseDataset(made.id, made));
  const savedModel = (made) => (setOpen(null), set({ modelId: made.id }));
  const synthetic = () => datasets.save(null, { name: t("train.synthetic_name"), about: t("train.synthetic_about"), versions: [{ id: "v1" }] }).then(savedDataset, () => setOpen({ dataset: true }));
  const known = models.entries?.some((entry) => entry.id === draft.modelId) || catalogue.some((model) => model.name === draft.modelId);
  const version = versions.find((one) => one.id === draft.datasetVersionId);
  return html`
    <${Card} id="train-what" title=${t("train.what")} aside=${t("train.what_about")}>
      <div class="train-fields padded">
        <${Field} id="task-name" name="taskName" label=${t("train.task_name")} required=${true} notice=${noticeOf(notices, "taskName")}
          input=${(common) => html`<input ...${common} maxlength="200" autocomplete="off" value=${draft.taskName} onInput=${(event) => set({ taskName: event.target.value })} />`} />
        <${Field} id="task-dataset" name="datasetId" label=${t("train.dataset")} required=${true} notice=${noticeOf(notices, "datasetId")}
          note=${datasets.entries?.length === 0 ? t("train.no_dataset") : dataset?.value.about}
          input=${(common) => html`
            <div class="train-with">
              <select ...${common} value=${draft.datasetId} onChange=${(event) => chooseDataset(event.target.value)}>
                <option value="" selected=${!dataset}>${t("train.choose")}</option>
                ${(datasets.entries ?? []).map((entry) => html`<option key=${entry.id} value=${entry.id} selected=${entry.id === draft.datasetId}>${entry.value.name}</option>`)}
              </select>
              ${datasets.entries?.length === 0 && html`<button type="button" onClick=${synthetic} title=${t("train.synthetic_about")}>${t("train.synthetic")}</button>`}
              <button type="button" onClick=${() => setOpen({ dataset: true })} aria-label=${t("train.add_dataset")} title=${t("train.add_dataset")}>${t("train.add")}</button>
            </div>`} />
        <${Field} id="task-version" name="datasetVersionId" label=${t("train.version_label")} required=${true} notice=${noticeOf(notices, "datasetVersionId")}
          note=${version && (version.path ?? t("train.synthetic_about"))}
          input=${(common) => html`
            <div class="train-with">
              <select ...${common} value=${draft.datasetVersionId} disabled=${!dataset} onChange=${(event) => set({ datasetVersionId: event.target.value })}>
                <option value="" selected=${!version}>${t("train.choose")}</option>
                ${versions.map((one) => html`<option key=${one.id} value=${one.id} selected=${one.id === draft.datasetVersionId}>${one.id}</option>`)}
              </select>
              ${dataset && html`<button type="button" onClick=${() => setOpen({ dataset })} aria-label=${t("train.add_version")} title=${t("train.add_version")}>${t("train.add")}</button>`}
            </div>`} />
        <${Field} id="task-model" name="modelId" label=${t("train.model")} required=${true} notice=${noticeOf(notices, "modelId")} note=${t("train.model_note")}
          input=${(common) => html`
            <div class="train-with">
              <select ...${common} value=${draft.modelId} onChange=${(event) => set({ modelId: event.target.value })}>
                <option value="" selected=${!draft.modelId}>${t("train.choose")}</option>
                ${models.entries?.length > 0 && html`
                  <optgroup label=${t("train.own_models")}>
                    ${models.entries.map((entry) => html`<option key=${entry.id} value=${entry.id} selected=${entry.id === draft.modelId}>${entry.value.name}</option>`)}
                  </optgroup>`}
                ${draft.modelId && !known && html`<option value=${draft.modelId} selected=${true}>${draft.modelId}</option>`}
                <optgroup label=${t("places.catalogue")}>
                  ${catalogue.map((model) => html`<option key=${model.name} value=${model.name} selected=${model.name === draft.modelId}>${model.name} (${billions(model.parameters.total)})</option>`)}
                </optgroup>
              </select>
              <button type="button" onClick=${() => setOpen({ model: true })} aria-label=${t("train.add_model")} title=${t("train.add_model")}>${t("train.add")}</button>
            </div>`} />
      </div>
      ${open?.dataset && html`
        <${Panel} title=${t(open.dataset === true ? "train.add_dataset" : "train.add_version")} close=${() => setOpen(null)}>
          <${DatasetForm} entry=${open.dataset === true ? null : open.dataset} save=${datasets.save} done=${savedDataset} />
        <//>`}
      ${open?.model && html`<${Panel} title=${t("train.add_model")} close=${() => setOpen(null)}><${EntryForm} groups=${MODEL} entry=${null} save=${models.save} done=${savedModel} /><//>`}
    <//>`;
}
