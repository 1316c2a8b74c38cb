import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/**
 * One setting: what was typed, what it means, what is wrong with it. Emptied, its default holds again.
 * @param {{setting: import("./launch-settings.js").SettingChoice, value: string, set: (text: string) => void, notice: import("../lib/api.js").Notice | undefined}} given
 */
export function SettingField({ setting, value, set, notice }) {
  const { t } = useText();
  const id = `setting-${setting.name.replace(/[^\w]+/g, "-")}`;
  const plain = setting.default !== null && typeof setting.default !== "object";
  const common = { id, "data-setting": setting.name, "aria-invalid": notice ? "true" : null, "aria-describedby": `${id}-note` };
  return html`
    <div class="deploy-field">
      <label for=${id}>${setting.title}</label>
      ${setting.kind === "flag"
        ? html`
          <select ...${common} value=${value} onChange=${(event) => set(event.target.value)}>
            <option value="" selected=${!value}>${t("form.default", { value: setting.default ? t("yes") : t("form.no") })}</option>
            <option value="true" selected=${value === "true"}>${t("yes")}</option>
            <option value="false" selected=${value === "false"}>${t("form.no")}</option>
          </select>`
        : html`
          <input ...${common} type="text" autocomplete="off" spellcheck=${false} maxlength="1000" value=${value} placeholder=${plain ? String(setting.default) : ""}
            inputmode=${setting.kind === "text" || setting.kind === "zones" ? null : "decimal"} onInput=${(event) => set(event.target.value)} />`}
      <p class="field-note" id=${`${id}-note`}>
        ${notice ? html`<span class="wrong" role="alert">${notice.message} ${notice.hint}</span>` : setting.meaning}
      </p>
    </div>`;
}
