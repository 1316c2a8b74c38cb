import { html, useState } from "../lib/dom.js";
import { fetchJson } from "../lib/api.js";
import { useAsked } from "../lib/asked.js";
import { Figure } from "../components/figure.js";
import { Formula } from "../components/formula.js";
import { More } from "../components/more.js";
import { TableFrame } from "../components/table-frame.js";
import { useText } from "../lib/text.js";
import { kindToken, useWords } from "./words.js";

const COLUMNS = ["traffic_gb", "share", "traffic_messages", "traffic_busy", "traffic_exposed"];

/** Every kind on every link; a row opens to its formula with the numbers put in. */
export function TrafficLines({ prediction, lines }) {
  const { t, label } = useText();
  return html`
    <${TableFrame} label=${label("traffic_title")}>
      <thead>
        <tr>
          <th scope="col">${label("traffic_kind")}</th>
          <th scope="col">${label("traffic_link")}</th>
          ${COLUMNS.map((key) => html`<th scope="col" key=${key} class="number">${label(key)}</th>`)}
          <th scope="col">${t("communication.formula")}</th>
        </tr>
      </thead>
      <tbody>
        <${More} most=${20} columns=${8} items=${lines.map((line, index) => ({ line, index }))}
          row=${({ line, index }) => html`<${Line} key=${`${line.kind} ${line.link}`} line=${line} path=${index < prediction.communication.length ? `communication[${index}]` : null} />`} />
      </tbody>
    <//>
    <p class="note-line">${label("analyse_caption")}</p>`;
}

function Line({ line, path }) {
  const { t, amount } = useText();
  const { kind, link, gb, share } = useWords();
  const [open, setOpen] = useState(false);
  const figure = (field, text) => (path ? html`<${Figure} path=${`${path}.${field}`}>${text}<//>` : text);
  return html`
    <tr data-line=${`${line.kind} ${line.link}`}>
      <th scope="row"><i class=${`swatch ${kindToken(line.kind)}`}></i>${kind(line.kind)}</th>
      <td>${link(line.link)}</td>
      <td class="number">${figure("bytes_per_step", gb(line.bytes_per_step))}</td>
      <td class="number">${share(line.share)}</td>
      <td class="number">${figure("messages", amount(line.messages))}</td>
      <td class="number">${figure("busy_s", amount(line.busy_s))}</td>
      <td class="number">${figure("exposed_s", amount(line.exposed_s))}</td>
      <td><button type="button" class="link" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>${line.formula}</button></td>
    </tr>
    ${open && html`
      <tr class="worked">
        <td colspan="8">
          <p><span class="quiet-text">${t("communication.worked", { formula: line.formula })}</span> <code>${line.worked} = ${amount(line.bytes_per_step)} B</code></p>
          <${FormulaText} id=${line.formula} />
        </td>
      </tr>`}`;
}

/** The formula as the documentation has it. */
function FormulaText({ id }) {
  const { language } = useText();
  const { answer } = useAsked(id, (asked, signal) => fetchJson(`formulas/${asked}`, language, signal));
  return answer && html`<${Formula} id=${answer.id} title=${answer.title} text=${answer.markdown} />`;
}
