import { html, useState } from "../lib/dom.js";
import { postJson } from "../lib/api.js";
import { linkTo } from "../lib/address.js";
import { useText } from "../lib/text.js";
import { Refusals } from "../compare/refusals.js";

/**
 * Keeps what a file says as a result that Compare shows beside others.
 * @param {{start: string, bodyOf: (name: string) => any, change: any, key?: any}} given start: the name proposed
 */
export function SaveResult({ start, bodyOf, change }) {
  const { t, language } = useText();
  const [name, setName] = useState(start);
  const [state, setState] = useState({ busy: false, saved: null, notices: [] });
  const submit = (event) => {
    event.preventDefault();
    setState({ busy: true, saved: null, notices: [] });
    postJson("calibrate/results", bodyOf(name.trim()), language).then(
      (saved) => setState({ busy: false, saved, notices: [] }),
      (error) => setState({ busy: false, saved: null, notices: error.notices?.length ? error.notices : [{ level: "error", message: t("failed"), hint: "" }] }),
    );
  };
  const place = state.saved && { place: "compare", results: state.saved.id, tab: null, kind: null };
  return html`
    <form class="calibrate-save" onSubmit=${submit} noValidate>
      <label class="calibrate-field"><span>${t("calibrate.save.result_name")}</span>
        <input value=${name} maxlength="200" aria-invalid=${state.notices.length ? "true" : null} onInput=${(event) => setName(event.target.value)} /></label>
      <button type="submit" class="primary" disabled=${state.busy || !name.trim()}>${t("calibrate.save.result")}</button>
      <span role="status" class="said">${state.saved && html`${t("calibrate.save.result_saved", { name: state.saved.name })} <a href=${linkTo(place)} onClick=${(event) => (event.preventDefault(), change(place))}>${t("calibrate.save.to_compare")}</a>`}</span>
      <${Refusals} notices=${state.notices} />
    </form>`;
}
