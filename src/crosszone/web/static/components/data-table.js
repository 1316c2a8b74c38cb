import { html, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { TableFrame } from "./table-frame.js";

/** A table that sorts by any column; the first cell of a row opens it. */
export function DataTable({ label, columns, rows, nameOf, chosen, open }) {
  const { t } = useText();
  const [order, setOrder] = useState({ key: null, down: false });
  const column = columns.find(({ key }) => key === order.key);
  const sorted = column ? [...rows].sort(comparing(column.value, order.down)) : rows;
  const sortBy = (key) => setOrder((old) => ({ key, down: old.key === key ? !old.down : false }));
  if (!rows.length) return html`<p class="empty">${t("catalogue.nothing")}</p>`;
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
              ${columns.map(({ key, shown, text }, index) =>
                index === 0
                  ? html`<th scope="row"><button type="button" class="link" aria-expanded=${String(name === chosen)} onClick=${(event) => open(name, event)}>${shown(row)}</button></th>`
                  : html`<td key=${key} class=${text ? "" : "number"}>${shown(row)}</td>`,
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
    if (x === null || y === null) return (x === null) - (y === null);
    return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
  };
}
