// Names of the catalogue to choose from, by kind.
import { createContext, html, useContext, useEffect, useState } from "../lib/dom.js";
import { fetchJson } from "../lib/api.js";
import { useText } from "../lib/text.js";

const KINDS = ["gpus", "models", "regions"];

export const ListsContext = createContext({ gpus: [], models: [], regions: [], stacks: [] });

/** @returns {Record<"gpus" | "models" | "regions" | "stacks", any[]>} entries of the catalogue, and software stacks */
export const useLists = () => useContext(ListsContext);

/** The entries, asked for once the form is shown. */
export function useListsState() {
  const { language } = useText();
  const [lists, setLists] = useState({ gpus: [], models: [], regions: [], stacks: [] });
  useEffect(() => {
    const take = (kind) => (rows) => setLists((old) => ({ ...old, [kind]: rows }));
    for (const kind of KINDS) fetchJson(`catalogue/${kind}`, language).then(take(kind), () => {});
    fetchJson("profiles", language).then((rows) => take("stacks")(rows.filter((row) => row.kind === "stack")), () => {});
  }, []);
  return lists;
}

/** The lists as the browser offers them while one types. */
export function Lists() {
  const { gpus, models, regions, stacks } = useLists();
  const { language, billions } = useText();
  return html`
    <datalist id="known-gpus">${gpus.map((gpu) => html`<option key=${gpu.name} value=${gpu.name} label=${`${gpu.memory_gib} GiB`} />`)}</datalist>
    <datalist id="known-models">${models.map((model) => html`<option key=${model.name} value=${model.name} label=${billions(model.parameters.total)} />`)}</datalist>
    <datalist id="known-regions">${regions.map((region) => html`<option key=${region.name} value=${region.name} label=${(language === "zh" && region.place_zh) || region.place} />`)}</datalist>
    <datalist id="known-stacks">${stacks.map((stack) => html`<option key=${stack.name} value=${stack.name} />`)}</datalist>`;
}
