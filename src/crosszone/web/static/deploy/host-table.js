import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { More } from "../components/more.js";
import { TableFrame } from "../components/table-frame.js";
import { pasted } from "./hosts.js";

const FIRST = 16;
const KEYS = ["address", "interface", "name"];
const EXAMPLES = { address: "10.0.0.1", interface: "eth0", name: "" };

/**
 * The machines of one group to type in; several lines pasted into a field fill the rows from there on.
 * @param {{name: string, rows: import("./hosts.js").HostRow[], wrong: Map<string, string>, set: (rows: import("./hosts.js").HostRow[]) => void}} given
 */
export function HostTable({ name, rows, wrong, set }) {
  const { t } = useText();
  const put = (at, key, text) => set(rows.map((row, number) => (number === at ? { ...row, [key]: text } : row)));
  const paste = (at) => (event) => {
    const text = event.clipboardData.getData("text");
    if (!/[\n\s,;]/.test(text.trim())) return;
    event.preventDefault();
    set(pasted(rows, at, text));
  };
  const same = rows.length > 1 && rows[0].interface.trim() && rows.some((row) => row.interface !== rows[0].interface);
  const numbered = rows.map((row, at) => ({ row, at }));
  return html`
    <${TableFrame} label=${name}>
      <thead>
        <tr><th scope="col" class="number">#</th>${KEYS.map((key) => html`<th scope="col" key=${key}>${t(`deploy.hosts.${key}`)}</th>`)}</tr>
      </thead>
      <tbody>
        <${More} items=${numbered} most=${FIRST} columns=${4} row=${({ row, at }) => html`
          <tr key=${at}>
            <th scope="row" class="number">${at}</th>
            ${KEYS.map((key) => {
              const said = wrong.get(`${at}.${key}`);
              return html`
                <td key=${key}>
                  <input type="text" data-host=${key} value=${row[key]} maxlength="100" autocomplete="off" spellcheck=${false} placeholder=${at ? "" : EXAMPLES[key]}
                    aria-label=${t("deploy.hosts.of", { what: t(`deploy.hosts.${key}`), zone: name, number: at })} aria-invalid=${said ? "true" : null} title=${said ?? null}
                    onInput=${(event) => put(at, key, event.target.value)} onPaste=${key === "address" ? paste(at) : null} />
                </td>`;
            })}
          </tr>`} />
      </tbody>
    <//>
    ${same && html`<p class="note-line"><button type="button" class="link" onClick=${() => set(rows.map((row) => ({ ...row, interface: rows[0].interface })))}>${t("deploy.hosts.same", { interface: rows[0].interface })}</button></p>`}
    ${[...wrong.values()].slice(0, 3).map((said) => html`<p key=${said} class="note-line wrong">${said}</p>`)}`;
}
