import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useWords } from "./words.js";

/** What can be filtered by, and the list of the answer that says what there is. @type {[string, string][]} */
const FACETS = [["zone", "zones"], ["gpu", "gpus"], ["status", "statuses"], ["type", "types"]];
const SORTS = ["name", "gpus", "uptime"];

/** Which environments are shown and in what order; the address keeps it. @param {{found: any, filter: string | null, choose: (filter: string | null) => void}} given */
export function Filters({ found, filter, choose }) {
  const { t } = useText();
  const words = useWords();
  const query = new URLSearchParams(filter ?? "");
  const put = (changes) => {
    for (const [key, value] of Object.entries(changes)) value ? query.set(key, value) : query.delete(key);
    choose(query.toString() || null);
  };
  const called = (facet, name) => (facet === "status" ? t(`train.status.${name}`) : facet === "type" ? words.type(name) : name);
  const filtered = FACETS.some(([facet]) => query.has(facet));
  return html`
    <div class="train-filters" role="group" aria-label=${t("train.filter")}>
      ${FACETS.map(([facet, list]) => html`
        <label key=${facet}>
          <span>${t(`train.fact.${facet}`)}</span>
          <select data-filter=${facet} value=${query.get(facet) ?? ""} onChange=${(event) => put({ [facet]: event.target.value })}>
            <option value="" selected=${!query.get(facet)}>${t("train.all")}</option>
            ${(found?.[list] ?? []).map((name) => html`<option key=${name} value=${name} selected=${name === query.get(facet)}>${called(facet, name)}</option>`)}
          </select>
        </label>`)}
      <label>
        <span>${t("train.sort")}</span>
        <select data-filter="sort" value=${query.get("sort") ?? "name"} onChange=${(event) => put({ sort: event.target.value === "name" ? null : event.target.value, order: event.target.value === "name" ? null : "desc" })}>
          ${SORTS.map((name) => html`<option key=${name} value=${name} selected=${name === (query.get("sort") ?? "name")}>${t(`train.sort_by.${name}`)}</option>`)}
        </select>
      </label>
      <button type="button" class="quiet" title=${t("train.turn_title")}
        onClick=${() => put({ order: query.get("order") === "desc" ? null : "desc" })}>${t(query.get("order") === "desc" ? "train.descending" : "train.ascending")}</button>
      ${filtered && html`<button type="button" class="quiet" onClick=${() => put(Object.fromEntries(FACETS.map(([facet]) => [facet, null])))}>${t("train.show_all")}</button>`}
    </div>`;
}
