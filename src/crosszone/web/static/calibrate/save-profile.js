import { html, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Refusals } from "../compare/refusals.js";

/** Keeps what a fit found as an own profile. @param {{profile: any, own: import("./own.js").Own}} given */
export function SaveProfile({ profile, own }) {
  const { t } = useText();
  const [name, setName] = useState(profile.name);
  const [use, setUse] = useState(true);
  const [replace, setReplace] = useState(false);
  const [state, setState] = useState({ busy: false, saved: null, notices: [] });
  const there = own.list?.own.some((row) => row.name === name.trim());
  const submit = (event) => {
    event.preventDefault();
    setState({ busy: true, saved: null, notices: [] });
    own.save({ name: name.trim(), profile, use, replace: there && replace }).then(
      (made) => setState({ busy: false, saved: made.name, notices: [] }),
      (error) => setState({ busy: false, saved: null, notices: error.notices?.length ? error.notices : [{ level: "error", message: t("failed"), hint: "" }] }),
    );
  };
  return html`
    <form class="calibrate-save" onSubmit=${submit} noValidate>
      <label class="calibrate-field"><span>${t("calibrate.save.profile_name")}</span>
        <input value=${name} maxlength="60" autocomplete="off" spellcheck=${false} aria-invalid=${state.notices.length ? "true" : null} onInput=${(event) => setName(event.target.value)} /></label>
      <label class="calibrate-check"><input type="checkbox" checked=${use} onChange=${(event) => setUse(event.target.checked)} /> ${t("calibrate.save.use")}</label>
      ${there && html`<label class="calibrate-check"><input type="checkbox" checked=${replace} onChange=${(event) => setReplace(event.target.checked)} /> ${t("calibrate.save.replace")}</label>`}
      <button type="submit" class="primary" disabled=${state.busy || !name.trim()}>${t("calibrate.save.profile")}</button>
      <span role="status" class="said">${state.saved && t("calibrate.save.profile_saved", { name: state.saved })}</span>
      <${Refusals} notices=${state.notices} />
    </form>`;
}
