import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { fetchJson } from "../lib/api.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { columnsOf, nameOf, wordsOf } from "./columns.js";
import { DataTable } from "./data-table.js";
import { EntryForm } from "./entry-form.js";
import { EntryPanel } from "./entry-panel.js";
import { ProfilePanel } from "./profile-panel.js";

const KINDS = ["gpus", "models", "regions", "links", "profiles"];
/** Kinds that may have entries of the user's own. */
const EDITABLE = ["gpus", "models", "regions"];

/** @typedef {{mode: "new" | "copy" | "edit", name: string | null}} Draft what the form is for, and the entry it starts from */

/**
 * GPUs, models, regions, measured links and profiles, each figure with its source; and the user's own entries.
 * @param {{address: import("../lib/address.js").Address, change: (changes: any, how?: any) => void}} given
 */
export function CataloguePlace({ address, change }) {
  const texts = useText();
  const { t, language } = texts;
  const scenario = useScenario();
  const kind = KINDS.includes(address.kind) ? address.kind : "gpus";
  const filter = address.filter ?? "";
  const [lists, setLists] = useState({});
  const [failed, setFailed] = useState(false);
  const [ownOnly, setOwnOnly] = useState(false);
  const [draft, setDraft] = useState(/** @type {Draft | null} */ (null));
  const opener = useRef(null);
  const editable = EDITABLE.includes(kind);
  const rows = lists[kind];

  const load = () =>
    fetchJson(kind === "profiles" ? "profiles" : `catalogue/${kind}`, language).then(
      (found) => setLists((old) => ({ ...old, [kind]: found })),
      () => setFailed(true),
    );
  useEffect(() => {
    if (!rows) load();
  }, [kind]);

  const open = (name, event) => {
    opener.current = event.currentTarget;
    setDraft(null);
    change({ place: "catalogue", kind, entry: name });
  };
  const close = () => {
    setDraft(null);
    change({ entry: null });
    opener.current?.focus();
  };
  const begin = (next, event) => {
    if (!address.entry) opener.current = event.currentTarget;
    setDraft(next);
  };
  /** The lists and the scenario's answers follow what was saved or removed. */
  const saved = (entry) => {
    setDraft(null);
    change({ entry });
    load();
    if (scenario.body) "text" in scenario.body ? scenario.setText(scenario.body.text) : scenario.setFields(scenario.body.scenario);
  };
  const turn = (target) => {
    setDraft(null);
    setOwnOnly(false);
    change({ kind: target, filter: null, entry: null });
  };
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = rows?.filter((row) => (!ownOnly || row.own) && words.every((word) => wordsOf(kind, row).includes(word)));
  const panel = panelOf({ kind, address, change, draft, setDraft, begin, close, saved });

  return html`
    <div class=${`catalogue ${panel ? "with-entry" : ""}`}>
      <section class="pane" aria-labelledby="catalogue-heading">
        <h2 id="catalogue-heading" class="visually-hidden">${t("places.catalogue")}</h2>
        <div class="bar">
          <div class="segmented" role="group" aria-label=${t("catalogue.kinds")}>
            ${KINDS.map(
              (target) => html`<button type="button" aria-pressed=${String(kind === target)} onClick=${() => turn(target)}>${t(`catalogue.${target}`)}</button>`,
            )}
          </div>
          <label class="filter">
            <span class="visually-hidden">${t("catalogue.filter")}</span>
            <input type="search" value=${filter} placeholder=${t("catalogue.filter")}
              onInput=${(event) => change({ filter: event.target.value || null }, { step: false })} />
          </label>
          ${editable && html`
            <label class="own-only"><input type="checkbox" checked=${ownOnly} onChange=${(event) => setOwnOnly(event.target.checked)} />${t("catalogue.own_only")}</label>`}
          <p class="count" role="status">${found && t("catalogue.count", { shown: found.length, all: rows.length })}</p>
          ${editable && html`<button type="button" class="add" onClick=${(event) => begin({ mode: "new", name: null }, event)}>${t(`catalogue.add.${kind}`)}</button>`}
        </div>
        ${failed && html`<p class="text-error" role="alert">${t("failed")}</p>`}
        ${found && html`
          <${DataTable} key=${kind} label=${t(`catalogue.${kind}`)} columns=${columnsOf(kind, texts)} rows=${found}
            nameOf=${(row) => nameOf(kind, row)} chosen=${address.entry} open=${open}
            empty=${ownOnly && !words.length ? t("catalogue.no_own") : t("catalogue.nothing")} />
          <p class="quiet-text">${t(`catalogue.${kind}_about`)}</p>`}
      </section>
      ${panel}
    </div>`;
}

function panelOf({ kind, address, change, draft, setDraft, begin, close, saved }) {
  if (draft) {
    const leave = () => (address.entry ? setDraft(null) : close());
    return html`<${EntryForm} key=${`${kind} ${draft.mode} ${draft.name}`} kind=${kind} draft=${draft} saved=${saved} close=${leave} />`;
  }
  if (!address.entry) return null;
  if (kind === "profiles") return html`<${ProfilePanel} key=${address.entry} name=${address.entry} close=${close} />`;
  return html`
    <${EntryPanel} key=${`${kind} ${address.entry}`} kind=${kind} name=${address.entry} close=${close}
      begin=${EDITABLE.includes(kind) ? begin : null} removed=${() => saved(null)} change=${change} />`;
}
