import { html, useState } from "../lib/dom.js";
import { copyText } from "../lib/copy.js";
import { Card } from "../components/card.js";
import { useText } from "../lib/text.js";
import { useWords } from "./words.js";

/** Settings of the hosts for the links in use, to be copied. */
export function Hosts({ settings }) {
  const { t, label, amount } = useText();
  const { said } = useWords();
  if (!settings.length) return null;
  return html`
    <${Card} id="host-settings" title=${label("host_title")} aside=${t("communication.hosts_about")}>
      <ul class="hosts">
        ${settings.map((one) => html`
          <li key=${one.setting}>
            <code>${one.setting}</code> <${Copy} text=${one.setting} />
            <p class="quiet-text">${one.why} ${one.saves_s && said("host_saves", { s: amount(one.saves_s) })}</p>
          </li>`)}
      </ul>
    <//>`;
}

function Copy({ text }) {
  const { t } = useText();
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    setCopied(await copyText(text));
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<button type="button" class="small" onClick=${copy} aria-label=${`${t("communication.copy")} ${text}`}><span role="status">${copied ? t("communication.copied") : t("communication.copy")}</span></button>`;
}
