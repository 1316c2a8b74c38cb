import { html, useState } from "../lib/dom.js";
import { GIVEN, useAnswers } from "../lib/answers.js";
import { postBlob } from "../lib/api.js";
import { fileName, saveBlob } from "../lib/save.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { useWork } from "../lib/work.js";
import { Card } from "../components/card.js";
import { fileOf } from "../scenario/command.js";
import { deployCommand } from "./command.js";
import { CopyButton } from "./copy-button.js";

/**
 * How the bundle is started, and the ways to take it along or keep it.
 * @param {{bundle: any, saved: any, question: any, bundles: import("./bundles.js").Bundles, choices: any, given: [string, string][], change: any}} given
 *   question: what the bundle was made of; null: it is of an earlier one, or a saved one
 */
export function Start({ bundle, saved, question, bundles, choices, given, change }) {
  const { t, amount } = useText();
  const called = (kind, name) => choices?.[kind].find((one) => one.name === name)?.title ?? name;
  const counts = { ranks: amount(bundle.world_size), count: amount(bundle.nodes.length), files: amount(bundle.files.length) };
  return html`
    <${Card} id="deploy-start" title=${t("deploy.start")}
      aside=${t("deploy.summary", { framework: called("frameworks", bundle.framework), launcher: called("launchers", bundle.launcher), ...counts })}>
      ${bundle.template && html`<p class="note-line deploy-open">${t("deploy.is_template")}</p>`}
      <div class="deploy-how">
        <pre tabindex="0" aria-label=${t("deploy.start")}>${bundle.how.join("\n")}</pre>
        <${CopyButton} text=${() => `${bundle.how.join("\n")}\n`} label=${t("deploy.copy_commands")} />
      </div>
      ${!saved && html`<${Keep} bundle=${bundle} question=${question} bundles=${bundles} given=${given} change=${change} />`}
      ${saved && html`
        <div class="card-bar"><a class="button" href=${`/api/v1/bundles/${saved.id}/zip`} download>${t("deploy.zip")}</a></div>`}
    <//>`;
}

/** Download, save, copy as a command. */
function Keep({ bundle, question, bundles, given, change }) {
  const { t, language } = useText();
  const scenario = useScenario();
  const { chosen, objective } = useAnswers();
  const [naming, setNaming] = useState(null);
  const { busy, said, setSaid, during } = useWork();
  const ready = question !== null && !busy;
  const zip = () => during(async () => saveBlob(await postBlob("bundles/zip", question, language), `${fileName(bundle.name)}-${bundle.framework}.zip`));
  const save = (event) => {
    event.preventDefault();
    during(async () => {
      const made = await bundles.save({ ...question, name: naming.trim() || null });
      setNaming(null);
      setSaid({ words: t("deploy.saved", { name: made.name }), id: made.id });
    });
  };
  const command = () => {
    const { name, edited, shelf, fields } = scenario;
    const best = fields?.strategy ? chosen === GIVEN : chosen === "1" && objective === "time";
    const listed = shelf.examples.some((example) => example.name === name);
    const file = !edited && listed && best ? fileOf(name) : null;
    const text = bundle.files.find((one) => one.path === "plan.yaml").text;
    return deployCommand({ ...question, file, text, given });
  };
  return html`
    <div class="card-bar" role="group" aria-label=${t("deploy.keep")}>
      <button type="button" class="primary" disabled=${!ready} onClick=${zip}>${t("deploy.zip")}</button>
      ${naming === null
        ? html`<button type="button" disabled=${!ready} onClick=${() => setNaming(bundle.name)}>${t("deploy.save")}</button>`
        : html`
          <form class="inline-form" onSubmit=${save} onKeyDown=${(event) => event.key === "Escape" && setNaming(null)}>
            <input aria-label=${t("deploy.save_name")} maxlength="200" value=${naming} onInput=${(event) => setNaming(event.target.value)} />
            <button type="submit" disabled=${!ready}>${t("deploy.save_now")}</button>
            <button type="button" class="quiet" onClick=${() => setNaming(null)}>${t("deploy.not_now")}</button>
          </form>`}
      <${CopyButton} text=${command} label=${t("deploy.copy_cli")} title=${t("deploy.copy_cli_title")} disabled=${!ready} />
      <span class=${`said ${said?.wrong ? "wrong" : ""}`} role="status">
        ${busy ? t("deploy.busy") : said?.words} ${said?.id && html`<button type="button" class="link" onClick=${() => change({ bundle: said.id, file: null })}>${t("deploy.open")}</button>`}
      </span>
    </div>`;
}
