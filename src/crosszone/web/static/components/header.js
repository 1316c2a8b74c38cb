import { html } from "../lib/dom.js";
import { linkTo } from "../lib/address.js";
import { LANGUAGES, useText } from "../lib/text.js";

/** Brand, places, language and theme. */
export function Header({ places, place, change, language, chooseLanguage, theme, chooseTheme }) {
  const { t } = useText();
  const go = (target) => (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return;
    event.preventDefault();
    change(stateOf(target));
  };
  return html`
    <header class="top">
      <a class="skip" href="#main">${t("skip")}</a>
      <h1 class="brand"><img src="/icon.svg" alt="" width="22" height="22" />CrossZone</h1>
      <nav aria-label=${t("places.label")}>
        ${places.map(
          (target) => html`
            <a href=${linkTo(stateOf(target))} onClick=${go(target)} aria-current=${place === target ? "page" : null}>
              ${t(`places.${target}`)}
            </a>`,
        )}
      </nav>
      <div class="switches">
        <div class="segmented" role="group" aria-label=${t("language")}>
          ${LANGUAGES.map(
            ([code, name]) => html`
              <button type="button" lang=${code} aria-pressed=${String(language === code)}
                onClick=${() => chooseLanguage(code)}>${name}</button>`,
          )}
        </div>
        <button type="button" class="quiet" role="switch" aria-checked=${String(theme === "dark")}
          onClick=${() => chooseTheme(theme === "dark" ? "light" : "dark")}>
          <span class="theme-sign" aria-hidden="true"></span>${t("dark")}
        </button>
      </div>
    </header>`;
}

const stateOf = (place) => ({ place: place === "plan" ? null : place, kind: null, filter: null, entry: null });
