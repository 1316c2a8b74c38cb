import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Accuracy } from "./accuracy.js";
import { Learn } from "./learn.js";
import { Profiles } from "./profiles.js";
import { useOwn } from "./own.js";

const VIEWS = ["profiles", "accuracy", "learn"];

/**
 * Calibrate: the profiles that predictions rest on, how good they are, and how to make them better.
 * @param {{address: import("../lib/address.js").Address, change: any}} given
 */
export function CalibratePlace({ address, change }) {
  const { t, language } = useText();
  const own = useOwn(language);
  const view = VIEWS.includes(address.tab) ? address.tab : VIEWS[0];
  const go = (tab) => change({ tab: tab === VIEWS[0] ? null : tab, kind: null });
  return html`
    <div class="answers calibrate" data-place="calibrate">
      <h2 class="visually-hidden">${t("places.calibrate")}</h2>
      <div class="calibrate-tabs">
        <div class="segmented" role="group" aria-label=${t("calibrate.views")}>
          ${VIEWS.map((one) => html`<button type="button" key=${one} aria-pressed=${String(one === view)} onClick=${() => go(one)}>${t(`calibrate.view.${one}`)}</button>`)}
        </div>
        ${own.list && html`<span class="quiet-text" data-default=${own.list.default ?? ""}>${own.list.default ? t("calibrate.uses", { name: own.list.default }) : t("calibrate.uses_shipped")}</span>`}
      </div>
      ${view === "profiles" && html`<${Profiles} own=${own} learn=${() => go("learn")} />`}
      ${view === "accuracy" && html`<${Accuracy} change=${change} learn=${() => go("learn")} />`}
      ${view === "learn" && html`<${Learn} own=${own} address=${address} change=${change} />`}
    </div>`;
}
