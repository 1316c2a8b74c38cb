import { html } from "../lib/dom.js";

/** Short facts in a row: [[name, value], ...]. */
export function Facts({ facts }) {
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
