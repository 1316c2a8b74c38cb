// The small part of Markdown that the formulas are written in: paragraphs, tables, `code`, *emphasis* and [ids] of formulas.
import { html } from "./dom.js";

const INLINE = /`([^`]+)`|\*([^*\s][^*]*)\*|\[([A-Z]\d{1,2})\]|\[([^\]]+)\]\([^)]*\)/g;

/**
 * Text as elements; nothing in it is taken as HTML. `link`: what an id of a formula becomes.
 * @param {string} text
 * @param {(id: string) => any} link
 */
export function markdown(text, link) {
  return text.split(/\n{2,}/).map((block) => (block.startsWith("|") ? table(block, link) : html`<p>${inline(block, link)}</p>`));
}

function table(block, link) {
  const [head, , ...rows] = block.split("\n").filter((line) => line.startsWith("|")).map((line) => line.slice(1).replace(/\|\s*$/, "").split("|").map((cell) => cell.trim()));
  return html`
    <div class="table-frame" tabindex="0" role="group">
      <table>
        <thead><tr>${head.map((cell) => html`<th scope="col">${inline(cell, link)}</th>`)}</tr></thead>
        <tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td>${inline(cell, link)}</td>`)}</tr>`)}</tbody>
      </table>
    </div>`;
}

function inline(text, link) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, code, emphasis, id, words] = match;
    found.push(text.slice(end, match.index));
    found.push(code ? html`<code>${code}</code>` : emphasis ? html`<em>${emphasis}</em>` : id ? link(id) : words);
    end = match.index + whole.length;
  }
  return [...found, text.slice(end)];
}
