import { html, useEffect, useMemo, useState } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { fetchJson, streamJson } from "../lib/api.js";
import { useAsked } from "../lib/asked.js";
import { runAlone } from "../lib/requests.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { Notices } from "../components/notices.js";
import { Refusals } from "../compare/refusals.js";
import { useBundles } from "./bundles.js";
import { Files } from "./files-card.js";
import { Hosts } from "./hosts-card.js";
import { hostsUnknown } from "./hosts.js";
import { useSettings } from "./launch-settings.js";
import { Nodes } from "./nodes-card.js";
import { Options } from "./options-card.js";
import { OpenedBundle } from "./opened.js";
import { Refusal } from "./refusal.js";
import { Saved } from "./saved-card.js";
import { SettingsCard } from "./settings-card.js";
import { Start } from "./start-card.js";

/** Milliseconds without a change until the bundle is made anew. */
const PAUSE_MS = 250;

/**
 * The plan shown, as files that start it: chosen, looked at, taken along, kept.
 * @param {{address: import("../lib/address.js").Address, change: any}} given
 */
export function DeployPlace({ address, change }) {
  const { t, language } = useText();
  const { body, busy, planNotices } = useAnswers();
  const { fields } = useScenario();
  const [choices, setChoices] = useState(null);
  const [failed, setFailed] = useState(false);
  useEffect(() => {
    fetchJson("bundles/choices", language).then(setChoices, () => setFailed(true));
  }, [language]);
  const known = (kind, name) => (choices?.[kind].some((one) => one.name === name) ? name : null);
  const framework = known("frameworks", address.framework);
  const launcher = known("launchers", address.launcher) ?? "nodes";
  const needed = Boolean(choices?.launchers.find((one) => one.name === launcher).needs_addresses);
  const template = address.template ? address.template === "1" : needed && hostsUnknown(fields); // nothing is known yet: it can be filled in later
  const settings = useSettings(choices, launcher);
  const question = useMemo(
    () => body && choices && { ...body, framework, launcher, template, settings: settings.sent },
    [body, Boolean(choices), framework, launcher, template, settings.sent],
  );
  const preview = (sent, signal) => runAlone(() => streamJson("bundles/preview", sent, language, { signal }), signal);
  const made = useAsked(question, preview, { pause: PAUSE_MS, also: [language] });
  const fresh = made.asked === question && !made.busy;
  const bundles = useBundles(language);
  const id = useMemo(() => address.bundle && { id: address.bundle }, [address.bundle]);
  const opened = useAsked(id, (asked, signal) => fetchJson(`bundles/${encodeURIComponent(asked.id)}`, language, signal));
  const saved = id && opened.asked === id ? opened.answer : null;
  const bundle = saved?.bundle ?? (id || made.notices.length ? null : made.answer);
  const show = (path) => {
    change({ file: path }, { step: false });
    document.getElementById("deploy-files")?.scrollIntoView({ block: "start" });
  };
  const waiting = id ? opened.busy : !choices || made.busy || (busy && !bundle);
  return html`
    <div class="answers deploy" data-place="deploy" aria-busy=${waiting && !failed}>
      <h2 class="visually-hidden">${t("places.deploy")}</h2>
      <${Refusals} notices=${id ? opened.notices : []} failed=${failed || (id ? opened.failed : made.failed)} />
      ${id && html`<${OpenedBundle} saved=${saved} leave=${() => change({ bundle: null, file: null })} change=${change} />`}
      ${!id && choices && html`
        <${SettingsCard} choices=${choices} framework=${framework} launcher=${launcher} template=${template} settings=${settings} change=${change}
          notices=${made.notices} own=${made.answer?.framework} />
        <${Refusal} notices=${made.notices.length ? made.notices : body ? [] : planNotices} framework=${framework} change=${change} />
        <${Hosts} notices=${made.notices} needed=${needed && !template} />`}
      ${!bundle && waiting && html`<p class="empty" role="status">${t("deploy.making")}</p>`}
      ${!bundle && !waiting && !id && !made.notices.length && !planNotices.length && html`<p class="empty">${t("deploy.empty")}</p>`}
      ${bundle && html`
        <div class=${id || fresh ? "" : "stale"}>
          <${Start} bundle=${bundle} saved=${saved} question=${fresh ? question : null} bundles=${bundles} choices=${choices} given=${settings.given} change=${change} />
          <${Nodes} bundle=${bundle} show=${show} />
          <${Files} bundle=${bundle} path=${address.file} choose=${(path) => change({ file: path }, { step: false })} />
          <${Options} options=${bundle.options} />
          <${Notices} notices=${bundle.warnings} lineOf=${() => null} />
        </div>`}
      <${Saved} bundles=${bundles} choices=${choices} chosen=${address.bundle} open=${(one) => change({ bundle: one, file: null })} left=${() => change({ bundle: null })} />
    </div>`;
}
