import { html } from "../lib/dom.js";

/** Stops of a slider: `each` a factor of ten, to two digits. @param {number} from @param {number} to @param {number} [each] */
export function decades(from, to, each = 24) {
  const count = Math.round(Math.log10(to / from) * each);
  const stops = Array.from({ length: count + 1 }, (_, step) => Number((from * 10 ** (step / each)).toPrecision(2)));
  return [...new Set(stops)];
}

/** Powers of two and the halves between them. @param {number} from @param {number} to */
export function doublings(from, to) {
  const stops = [];
  for (let stop = from; stop <= to; stop *= 2) stops.push(stop, stop * 1.5);
  return stops.slice(0, -1);
}

/**
 * A slider over stops, evenly spaced by factor; every move counts at once.
 * @param {{stops: number[], value: unknown, set: (value: number) => void, label: string, write: (value: number) => string, name: string}} given write: a value in words
 */
export function Slider({ stops, value, set, label, write, name }) {
  const number = typeof value === "number" && value > 0 ? value : stops[0];
  const distance = (stop) => Math.abs(Math.log(stop / number));
  const nearest = stops.reduce((best, stop, at) => (distance(stop) < distance(stops[best]) ? at : best), 0);
  return html`
    <input class="slider" type="range" min="0" max=${stops.length - 1} step="1" value=${nearest} data-slider=${name}
      aria-label=${label} aria-valuetext=${write(number)} onInput=${(event) => set(stops[Number(event.target.value)])} />`;
}
