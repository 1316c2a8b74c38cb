import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Field } from "./field.js";
import { useForm } from "./form.js";
import { useLists } from "./lists.js";

/** Where a zone is: a name of the catalogue, or coordinates. @param {{path: import("../lib/fields.js").Path, known: any}} given */
export function Region({ path, known }) {
  const { t, language } = useText();
  const { at, set } = useForm();
  const { regions } = useLists();
  const value = at(path);
  const place = known && ((language === "zh" && known.place_zh) || known.place);
  const own = value !== null && typeof value === "object";
  const swap = html`
    <button type="button" class="link swap" onClick=${() => set(path, own ? undefined : { lat: known?.lat ?? 0, lon: known?.lon ?? 0 })}>
      ${own ? t("form.by_name") : t("form.by_coordinates")}
    </button>`;
  if (!own) {
    return html`<${Field} owner="Zone" path=${path} list="known-regions" names=${regions.map((region) => region.name)} placeholder=${t("form.no_region")}
      hint=${place} after=${swap} />`;
  }
  return html`
    <div class="pair">
      <${Field} owner="Region" path=${[...path, "lat"]} after=${swap} />
      <${Field} owner="Region" path=${[...path, "lon"]} />
    </div>`;
}
