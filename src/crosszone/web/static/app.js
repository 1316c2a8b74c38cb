// CrossZone's page: the scenario on the left, the answers on the right; training, saved results and the catalogue on places of their own.
import { html, render, useEffect, useMemo, useState } from "./lib/dom.js";
import { keep, kept, useAddress } from "./lib/address.js";
import { AnswersContext, useAnswersState } from "./lib/answers.js";
import { ScenarioContext, useScenarioState } from "./lib/scenario.js";
import { LANGUAGES, TextContext, useTexts } from "./lib/text.js";
import { Header } from "./components/header.js";
import { TokenGate } from "./components/token-gate.js";

/** Places, the first one is home, each fetched when one first goes there; `true`: the scenario stands beside it. */
const PLACES = {
  plan: [() => import("./plan/place.js").then((file) => file.PlanPlace), true],
  accuracy: [() => import("./accuracy/place.js").then((file) => file.AccuracyPlace), true],
  communication: [() => import("./communication/place.js").then((file) => file.CommunicationPlace), true],
  timeline: [() => import("./timeline/place.js").then((file) => file.TimelinePlace), true],
  deploy: [() => import("./deploy/place.js").then((file) => file.DeployPlace), true],
  train: [() => import("./train/place.js").then((file) => file.TrainPlace), false],
  compare: [() => import("./compare/place.js").then((file) => file.ComparePlace), false],
  calibrate: [() => import("./calibrate/place.js").then((file) => file.CalibratePlace), false],
  catalogue: [() => import("./catalogue/place.js").then((file) => file.CataloguePlace), false],
};
const scenarioPane = () => import("./scenario/pane.js").then((file) => file.ScenarioPane);

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
  const place = address.place in PLACES ? address.place : "plan";
  const [theme, setTheme] = useState(document.documentElement.dataset.theme);

  useEffect(() => {
    if (address.theme === "light" || address.theme === "dark") setTheme(address.theme);
  }, [address.theme]);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  useEffect(() => {
    if (texts) document.title = `${texts.t(`places.${place}`)} - CrossZone`;
  }, [texts, place]);
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
      <${Header} places=${Object.keys(PLACES)} place=${place} change=${change} language=${language}
        chooseLanguage=${chooseLanguage} theme=${theme} chooseTheme=${chooseTheme} />
      <main id="main" tabindex="-1">
        <${TokenGate}><${Workspace} address=${address} change=${change} place=${place} language=${language} /><//>
      </main>
    <//>`;
}

/** The place one is at, with the scenario beside it where it is about one. */
function Workspace({ address, change, place, language }) {
  const scenario = useScenarioState(address, change, language);
  const answers = useAnswersState(scenario, address, change, language);
  const [load, beside] = PLACES[place];
  const Place = useLoaded(load);
  const Pane = useLoaded(scenarioPane);
  return html`
    <${ScenarioContext.Provider} value=${scenario}>
      <${AnswersContext.Provider} value=${answers}>
        <div class=${beside ? "beside" : "alone"}>
          ${beside && (Pane ? html`<${Pane} address=${address} change=${change} />` : html`<div class="pane source"></div>`)}
          <div class="place" aria-busy=${Place ? null : "true"}>${Place && html`<${Place} address=${address} change=${change} />`}</div>
        </div>
      <//>
    <//>`;
}

/** A component that is fetched when it is first wanted; null until then. @param {() => Promise<any>} load */
function useLoaded(load) {
  const [loaded, setLoaded] = useState({ load: null, Component: null });
  useEffect(() => {
    let wanted = true;
    load().then((Component) => wanted && setLoaded({ load, Component }), reloadIfUpdated);
    return () => (wanted = false);
  }, [load]);
  return loaded.load === load ? loaded.Component : null;
}

/** A place cannot be fetched: where the page is no longer the one the server has, its files are gone, and the new page is wanted. The draft survives. */
async function reloadIfUpdated(error) {
  const entry = document.querySelector("script[type=module]").getAttribute("src");
  const answer = await fetch(location.href, { cache: "no-cache" }).catch(() => null);
  if (answer?.ok && !(await answer.text()).includes(`src="${entry}"`)) location.reload();
  else throw error;
}

render(html`<${App} />`, document.getElementById("app"));
