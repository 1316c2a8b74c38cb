import { html, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { TableFrame } from "../components/table-frame.js";

/**
 * A table that sorts by any column; the first cell of a row opens it. `empty` is said where there is no row.
 * @param {{label: string, columns: import("./columns.js").Column[], rows: any[], nameOf: (row: any) => string, chosen: string | null,
 *   open: (name: string, event: any) => void, empty: string}} given
 */
export function DataTable({ label, columns, rows, nameOf, chosen, open, empty }) {
  const { t } = useText();
  const [order, setOrder] = useState({ key: null, down: false });
  const column = columns.find(({ key }) => key === order.key);
  const sorted = column ? [...rows].sort(comparing(column.value, order.down)) : rows;
  const sortBy = (key) => setOrder((old) => ({ key, down: old.key === key ? !old.down : false }));
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  return html`
    <${TableFrame} label=${label}>
      <thead>
        <tr>
          ${columns.map(
            ({ key, label: heading, text }) => html`
              <th scope="col" key=${key} class=${text ? "" : "number"} aria-sort=${order.key === key ? (order.down ? "descending" : "ascending") : "none"}>
                <button type="button" class="sort" onClick=${() => sortBy(key)}>${heading}</button>
              </th>`,
          )}
        </tr>
      </thead>
      <tbody>
        ${sorted.map((row) => {
          const name = nameOf(row);
          return html`
            <tr key=${name} class=${name === chosen ? "chosen" : ""}>
              ${columns.map(({ key, shown, text, wraps }, index) =>
                index === 0
                  ? html`<th scope="row"><button type="button" class="link" aria-expanded=${String(name === chosen)} onClick=${(event) => open(name, event)}>${shown(row)}</button>${row.own && html` <span class="own">${t("catalogue.own")}</span>`}</th>`
                  : html`<td key=${key} class=${wraps ? "wraps" : text ? "" : "number"}>${shown(row)}</td>`,
              )}
            </tr>`;
        })}
      </tbody>
    <//>`;
}

/** Orders rows by a value; rows without one come last either way. */
function comparing(value, down) {
  const sign = down ? -1 : 1;
  return (a, b) => {
    const [x, y] = [value(a) ?? null, value(b) ?? null];
    if (x === null || y === null) return Number(x === null) - Number(y === null);
    return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
  };
}
