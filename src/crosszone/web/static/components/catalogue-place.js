import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { fetchJson } from "../lib/api.js";
import { useText } from "../lib/text.js";
import { columnsOf, nameOf, wordsOf } from "./catalogue-columns.js";
import { DataTable } from "./data-table.js";
import { EntryPanel } from "./entry-panel.js";

const KINDS = ["gpus", "models", "regions", "links"];

/** GPUs, models, regions and measured links, each figure with its source. */
export function CataloguePlace({ address, change }) {
  const texts = useText();
  const { t, language } = texts;
  const kind = KINDS.includes(address.kind) ? address.kind : "gpus";
  const filter = address.filter ?? "";
  const [lists, setLists] = useState({});
  const [failed, setFailed] = useState(false);
  const opener = useRef(null);
  const rows = lists[kind];

  useEffect(() => {
    if (rows) return;
    fetchJson(`catalogue/${kind}`, language).then(
      (found) => setLists((old) => ({ ...old, [kind]: found })),
      () => setFailed(true),
    );
  }, [kind]);

  const open = (name, event) => {
    opener.current = event.currentTarget;
    change({ place: "catalogue", kind, entry: name });
  };
  const close = () => {
    change({ entry: null });
    opener.current?.focus();
  };
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const found = rows?.filter((row) => words.every((word) => wordsOf(kind, row).includes(word)));

  return html`
    <div class=${`catalogue ${address.entry ? "with-entry" : ""}`}>
      <section class="pane" aria-labelledby="catalogue-heading">
        <h2 id="catalogue-heading" class="visually-hidden">${t("places.catalogue")}</h2>
        <div class="bar">
          <div class="segmented" role="group" aria-label=${t("catalogue.kinds")}>
            ${KINDS.map(
              (target) => html`
                <button type="button" aria-pressed=${String(kind === target)} onClick=${() => change({ kind: target, filter: null, entry: null })}>
                  ${t(`catalogue.${target}`)}
                </button>`,
            )}
          </div>
          <label class="filter">
            <span class="visually-hidden">${t("catalogue.filter")}</span>
            <input type="search" value=${filter} placeholder=${t("catalogue.filter")}
              onInput=${(event) => change({ filter: event.target.value || null }, { step: false })} />
          </label>
          <p class="count" role="status">${found && t("catalogue.count", { shown: found.length, all: rows.length })}</p>
        </div>
        ${failed && html`<p class="text-error" role="alert">${t("failed")}</p>`}
        ${found && html`
          <${DataTable} key=${kind} label=${t(`catalogue.${kind}`)} columns=${columnsOf(kind, texts)} rows=${found}
            nameOf=${(row) => nameOf(kind, row)} chosen=${address.entry} open=${open} />
          <p class="quiet-text">${t(`catalogue.${kind}_about`)}</p>`}
      </section>
      ${address.entry && html`<${EntryPanel} key=${`${kind} ${address.entry}`} kind=${kind} name=${address.entry} links=${lists.links} close=${close} />`}
    </div>`;
}
