import { html } from "../lib/dom.js";

/** A titled part of the page. */
export function Card({ id, title, aside, children }) {
  return html`
    <section class="card" aria-labelledby=${id}>
      <div class="card-head"><h2 id=${id}>${title}</h2>${aside && html`<p class="aside">${aside}</p>`}</div>
      ${children}
    </section>`;
}
