// CrossZone's page: the scenario on the left, what follows from it on the right; the catalogue on a place of its own.
import { html, render, useEffect, useMemo, useState } from "./lib/dom.js";
import { keep, kept, useAddress } from "./lib/address.js";
import { LANGUAGES, TextContext, useTexts } from "./lib/text.js";
import { Header } from "./components/header.js";
import { ScenarioPlace } from "./components/scenario-place.js";
import { CataloguePlace } from "./components/catalogue-place.js";

const isLanguage = (code) => LANGUAGES.some(([known]) => known === code);

function preferredLanguage() {
  if (isLanguage(kept("lang"))) return kept("lang");
  return navigator.languages.map((tag) => tag.slice(0, 2).toLowerCase()).find(isLanguage) ?? "en";
}

function App() {
  const [address, change] = useAddress();
  const [failure, setFailure] = useState(null);
  const usual = useMemo(preferredLanguage, []);
  const language = isLanguage(address.lang) ? address.lang : usual;
  const texts = useTexts(language, setFailure);
  const inCatalogue = address.place === "catalogue";
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);

  useEffect(() => {
    if (address.theme === "light" || address.theme === "dark") setTheme(address.theme);
  }, [address.theme]);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  useEffect(() => {
    if (texts) document.title = `${texts.t(`places.${inCatalogue ? "catalogue" : "scenario"}`)} - CrossZone`;
  }, [texts, inCatalogue]);
  useEffect(() => {
    document.documentElement.lang = language === "zh" ? "zh-CN" : language;
  }, [language]);

  if (!texts) return failure ? html`<p class="failure" role="alert">${failure.message}</p>` : null;

  const chooseLanguage = (code) => {
    keep("lang", code);
    change({ lang: code }, { step: false });
  };
  const chooseTheme = (next) => {
    keep("theme", next);
    setTheme(next);
    change({ theme: next }, { step: false });
  };
  return html`
    <${TextContext.Provider} value=${texts}>
      <${Header} place=${inCatalogue ? "catalogue" : "scenario"} change=${change} language=${language}
        chooseLanguage=${chooseLanguage} theme=${theme} chooseTheme=${chooseTheme} />
      <main id="main" tabindex="-1">
        <div hidden=${inCatalogue}><${ScenarioPlace} address=${address} change=${change} /></div>
        ${inCatalogue && html`<${CataloguePlace} address=${address} change=${change} />`}
      </main>
    <//>`;
}

render(html`<${App} />`, document.getElementById("app"));
