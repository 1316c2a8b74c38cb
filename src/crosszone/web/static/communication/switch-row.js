import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { SwitchControl } from "./switch-control.js";

/** One switch: what it is, its control, the framework's own option, and why it cannot be turned. */
export function SwitchRow({ one, turned, turn, notices, letGo }) {
  const { t, label } = useText();
  const off = one.reason !== null && turned === undefined;
  const id = `switch-${one.name}`;
  const about = notices.length || off ? `${id}-why` : `${id}-option`;
  return html`
    <li class=${`switch-row ${turned === undefined ? "" : "turned"} ${off ? "off" : ""}`} data-switch=${one.name}>
      <label for=${id}>${one.title}</label>
      <div class="switch-control">
        <${SwitchControl} id=${id} one=${one} turned=${turned} turn=${turn} disabled=${off} about=${about} />
        ${turned !== undefined && html`<button type="button" class="quiet small" onClick=${() => turn(undefined)} aria-label=${`${t("communication.switch.back")} ${one.title}`}>${t("communication.switch.back")}</button>`}
        ${one.pinned && html`
          <span class="pin">${t("communication.switch.pinned")}
            <button type="button" class="link" onClick=${letGo} aria-label=${`${t("communication.switch.let_go")} ${one.title}`}>${t("communication.switch.let_go")}</button>
          </span>`}
      </div>
      ${!off && html`<p class="switch-option" id=${`${id}-option`}>${one.option === null ? html`<span class="quiet-text">${label("suggest_no_option")}</span>` : html`<code>${one.option}</code>`}</p>`}
      ${(off || notices.length > 0) && html`
        <p class=${`switch-why ${notices.length ? "wrong" : ""}`} id=${`${id}-why`}>
          ${notices.length ? notices.map((notice) => `${notice.message} ${notice.hint}`).join(" ") : `${one.reason.message} ${one.reason.hint}`}
        </p>`}
    </li>`;
}
