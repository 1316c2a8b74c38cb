import { html, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/** The first rows of a long list, and a button for the rest. `columns`: the list is the body of a table that wide. */
export function More({ items, row, most, columns }) {
  const { t } = useText();
  const [all, setAll] = useState(false);
  const shown = all ? items : items.slice(0, most);
  const button = html`
    <button type="button" class="link" onClick=${() => setAll(true)}>${t("more", { count: items.length })}</button>`;
  return html`
    ${shown.map(row)}
    ${shown.length < items.length &&
    (columns ? html`<tr><td colspan=${columns}>${button}</td></tr>` : html`<li>${button}</li>`)}`;
}
