import { html, useEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { fetchJson } from "../lib/api.js";
import { useAsked } from "../lib/asked.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { Refusals } from "../compare/refusals.js";
import { EntryForm } from "./entry-form.js";
import { Environment } from "./environment.js";
import { Filters } from "./filters.js";
import { ENVIRONMENT } from "./forms.js";
import { ImportForm } from "./import-form.js";
import { noticeOf } from "./field.js";
import { Links } from "./links.js";
import { NoEnvironment } from "./no-environment.js";
import { Panel } from "./panel.js";

/** Seconds after which uptimes are said anew. */
const MINUTE_S = 60;

/**
 * The environments: filter, sort, select, and keep the list of them.
 * @param {{environments: import("./entries.js").Entries, asking: import("./request.js").Asking, notices: import("../lib/api.js").Notice[], address: import("../lib/address.js").Address, change: any}} given
 */
export function Environments({ environments, asking, notices, address, change }) {
  const { t, amount, language } = useText();
  const [open, setOpen] = useState(null);
  const [said, setSaid] = useState(null);
  const heading = useRef(null);
  const now = useNow();
  const { entries } = environments;
  const question = useMemo(() => entries && { query: queryOf(address.filter) }, [entries, address.filter]);
  const found = useAsked(question, (asked, signal) => fetchJson(`environments?${asked.query}`, language, signal), { also: [language] });
  const shown = found.answer?.entries ?? [];
  const ids = shown.map((entry) => entry.id);
  const all = ids.length > 0 && ids.every((id) => asking.nodes.includes(id));
  const unseen = asking.nodes.filter((id) => !ids.includes(id)).length;
  const notice = noticeOf(notices, "distributedConfig.nodeIds");
  const done = (words) => (setOpen(null), setSaid(words), environments.reload());
  const saved = (made) => done(t("train.saved", { name: made.value.name }));
  const imported = (told) => done(t("train.imported", { added: amount(told.added.length), changed: amount(told.changed.length) }));
  const remove = async (id) => {
    await environments.remove(id);
    if (asking.nodes.includes(id)) asking.toggle(id);
    heading.current?.focus();
  };
  return html`
    <${Card} id="train-environments" title=${t("train.environments")} aside=${t("train.environments_about")}>
      <div class="bar" ref=${heading} tabindex="-1">
        <span class="train-badge count" data-figure="selected" role="status">${t("train.selected", { count: amount(asking.nodes.length) })}</span>
        ${unseen > 0 && html`<span class="quiet-text">${t("train.unseen", { count: amount(unseen) })}</span>`}
        ${ids.length > 0 && html`
          <button type="button" class="quiet" onClick=${() => asking.select(all ? asking.nodes.filter((id) => !ids.includes(id)) : [...new Set([...asking.nodes, ...ids])])}>${t(all ? "train.select_none" : "train.select_all")}</button>`}
        <span class="grow"></span>
        <span class="said" role="status">${said}</span>
        <button type="button" onClick=${() => setOpen({ add: true })}>${t("train.add")}</button>
        <button type="button" onClick=${() => setOpen({ import: true })}>${t("train.import.open")}</button>
      </div>
      <${Refusals} notices=${[...environments.notices, ...found.notices]} failed=${environments.failed || found.failed} />
      ${entries?.length > 0 && html`<${Filters} found=${found.answer} filter=${address.filter} choose=${(filter) => change({ filter }, { step: false })} />`}
      <div data-field="distributedConfig.nodeIds" tabindex="-1" role="group" aria-label=${t("train.environments")} aria-invalid=${notice ? "true" : null} class="train-choice">
        ${notice && html`<p class="train-wrong" role="alert">${notice.message}</p>`}
        ${entries?.length === 0 && html`<${NoEnvironment} environments=${environments} asking=${asking} add=${() => setOpen({ add: true })} />`}
        ${entries?.length > 0 && found.answer && !shown.length && html`<p class="empty">${t("train.none_shown")}</p>`}
        <ul class="train-environments">
          ${shown.map((entry) => html`
            <${Environment} key=${entry.id} entry=${entry} now=${now} chosen=${asking.nodes.includes(entry.id)} master=${asking.master === entry.id} several=${asking.several}
              toggle=${() => asking.toggle(entry.id)} lead=${() => asking.lead(entry.id)} edit=${() => setOpen({ entry })} changed=${environments.reload} remove=${() => remove(entry.id)} />`)}
        </ul>
      </div>
      ${asking.several && html`<${Links} nodes=${asking.nodes} entries=${entries ?? []} change=${change} />`}
      <datalist id="train-zones">${(found.answer?.zones ?? []).map((zone) => html`<option key=${zone} value=${zone} />`)}</datalist>
      <datalist id="train-types">${["jupyter", "custom", ...(found.answer?.types ?? [])].map((type) => html`<option key=${type} value=${type} />`)}</datalist>
      ${open?.add && html`<${Panel} title=${t("train.add_environment")} close=${() => setOpen(null)}><${EntryForm} groups=${ENVIRONMENT} entry=${null} save=${environments.save} done=${saved} /><//>`}
      ${open?.entry && html`
        <${Panel} title=${t("train.edit_title", { name: open.entry.value.name })} close=${() => setOpen(null)}><${EntryForm} groups=${ENVIRONMENT} entry=${open.entry} save=${environments.save} done=${saved} /><//>`}
      ${open?.import && html`<${Panel} title=${t("train.import.heading")} close=${() => setOpen(null)}><${ImportForm} done=${imported} /><//>`}
    <//>`;
}

/** What to ask for: filtered as the address says, by name unless it says otherwise. @param {string | null} filter */
const queryOf = (filter) => new URLSearchParams({ sort: "name", ...Object.fromEntries(new URLSearchParams(filter ?? "")) });

/** Seconds since 1970, told once a minute. */
function useNow() {
  const [now, setNow] = useState(() => Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now() / 1000), MINUTE_S * 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}
