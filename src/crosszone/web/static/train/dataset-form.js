import { html, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Refusals } from "../compare/refusals.js";
import { useSaving } from "./entry-form.js";
import { Field, noticeOf } from "./field.js";

const OF_VERSION = ["id", "path", "tokenizer"];

/** A dataset and its versions; a version that is there does not change any more. @param {{entry: import("./entries.js").Entry | null, save: (id: string | null, body: any) => Promise<any>, done: (made: any) => void}} given */
export function DatasetForm({ entry, save, done }) {
  const { t } = useText();
  const [head, setHead] = useState({ name: entry?.value.name ?? "", id: "", about: entry?.value.about ?? "" });
  const [added, setAdded] = useState(entry ? [{ id: "", path: "", tokenizer: "" }] : [{ id: "v1", path: "", tokenizer: "" }]);
  const { notices, failed, busy, submit, form } = useSaving();
  const kept = entry?.value.versions ?? [];
  const bodyOf = () => {
    const { id, ...rest } = head;
    const versions = added.filter((one) => OF_VERSION.some((name) => one[name].trim())).map((one) => filled(one));
    return { ...(id.trim() ? { id: id.trim() } : {}), ...rest, versions: [...kept, ...versions] };
  };
  const ofHead = (name, extra) => html`
    <${Field} id=${`dataset-${name}`} name=${name} label=${t(`train.field.${name}`)} notice=${noticeOf(notices, name)} ...${extra}
      input=${(common) => html`<input ...${common} maxlength="1000" autocomplete="off" value=${head[name]} onInput=${(event) => setHead({ ...head, [name]: event.target.value })} />`} />`;
  const seen = ["name", "id", "about", "versions"];
  return html`
    <form ref=${form} class="train-form" noValidate onSubmit=${submit(() => save(entry?.id ?? null, bodyOf()), done)}>
      <${Refusals} notices=${notices.filter((notice) => !seen.some((name) => noticeOf([notice], name)))} failed=${failed} />
      <fieldset>
        <legend>${t("train.group.dataset")}</legend>
        <div class="train-fields">
          ${ofHead("name", { required: true })}
          ${!entry && ofHead("id", { note: t("train.help.id") })}
          ${ofHead("about", { wide: true })}
        </div>
      </fieldset>
      ${kept.length > 0 && html`<p class="quiet-text">${t("train.versions_kept", { versions: kept.map((one) => one.id).join(", ") })}</p>`}
      ${added.map((version, at) => html`
        <fieldset key=${at}>
          <legend>${t("train.group.version")}</legend>
          <div class="train-fields">
            ${OF_VERSION.map((name) => {
              const field = `versions[${kept.length + at}].${name}`;
              return html`
                <${Field} key=${name} id=${`version-${at}-${name}`} name=${field} label=${t(`train.version.${name}`)} note=${t(`train.version_help.${name}`)} required=${name === "id"}
                  notice=${noticeOf(notices, field) ?? (name === "id" && at === 0 ? notices.find((one) => one.field === "versions") : undefined)}
                  input=${(common) => html`<input ...${common} maxlength="1000" autocomplete="off" spellcheck=${false} value=${version[name]}
                    onInput=${(event) => setAdded(added.map((one, place) => (place === at ? { ...one, [name]: event.target.value } : one)))} />`} />`;
            })}
          </div>
        </fieldset>`)}
      <div class="train-form-foot">
        <button type="submit" class="primary" disabled=${busy}>${t("train.save")}</button>
        <button type="button" onClick=${() => setAdded([...added, { id: "", path: "", tokenizer: "" }])}>${t("train.another_version")}</button>
      </div>
    </form>`;
}

const filled = (version) => Object.fromEntries(OF_VERSION.filter((name) => version[name].trim()).map((name) => [name, version[name].trim()]));
