import { html, useState } from "../lib/dom.js";
import { linkTo } from "../lib/address.js";
import { useAnswers } from "../lib/answers.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { Refusals } from "./refusals.js";

/** What to do first. @param {{save: (body: any) => Promise<any>, change: any}} given */
export function Empty({ save, change }) {
  const { t } = useText();
  return html`
    <${Card} id="compare-empty" title=${t("compare.empty_heading")}>
      <p class="compare-empty">${t("compare.empty")}</p>
      <div class="bar">
        <a class="button" href=${linkTo({ place: null })} onClick=${(event) => (event.preventDefault(), change({ place: null }))}>${t("compare.to_plan")}</a>
        <${SaveShown} save=${save} />
      </div>
    <//>`;
}

/** Saves the prediction that the Plan page shows now. @param {{save: (body: any) => Promise<any>}} given */
export function SaveShown({ save }) {
  const { t } = useText();
  const { body, prediction, stale } = useAnswers();
  const [notices, setNotices] = useState([]);
  const [busy, setBusy] = useState(false);
  const click = () => {
    setBusy(true);
    save(body)
      .then(() => setNotices([]), (error) => setNotices(error.notices ?? []))
      .finally(() => setBusy(false));
  };
  return html`
    <button type="button" disabled=${busy || !body || !prediction || stale} onClick=${click}>${t("compare.save_now")}</button>
    <${Refusals} notices=${notices} />`;
}
