import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { MOST, axisOf, wrongOf } from "./heat-axes.js";

/** One axis: its field, from where to where, in how many steps. @param {{name: string, axis: import("./heat-axes.js").Axis, fields: import("./heat-axes.js").Field[], set: (axis: import("./heat-axes.js").Axis) => void}} given */
export function AxisForm({ name, axis, fields, set }) {
  const { t } = useText();
  const known = fields.some((one) => one.field === axis.field);
  const wrong = wrongOf(axis);
  const id = `heat-${name}`;
  const choose = (field) => set(axisOf(fields.find((one) => one.field === field), Number(axis.count) || 8));
  const number = (key, words, more = {}) => html`
    <label>${words} <input type="number" step="any" value=${axis[key]} aria-describedby=${wrong ? `${id}-wrong` : null} aria-invalid=${wrong ? "true" : null}
      data-axis=${`${name}-${key}`} onInput=${(event) => set({ ...axis, [key]: event.target.value })} ...${more} /></label>`;
  return html`
    <fieldset class="axis">
      <legend>${t(`communication.heat.axis.${name}`)}</legend>
      <select aria-label=${t(`communication.heat.axis.${name}`)} data-axis=${`${name}-field`} value=${axis.field} onChange=${(event) => choose(event.target.value)}>
        ${!known && html`<option value=${axis.field} selected>${axis.field}</option>`}
        ${fields.map((one) => html`<option key=${one.field} value=${one.field} selected=${one.field === axis.field}>${fieldWords(one, t)}</option>`)}
      </select>
      ${number("low", t("communication.heat.from"))}
      ${number("high", t("communication.heat.to"))}
      ${number("count", t("communication.heat.steps"), { min: 2, max: MOST, step: 1 })}
      <select aria-label=${t("communication.heat.scale")} value=${axis.scale} onChange=${(event) => set({ ...axis, scale: event.target.value })}>
        ${["log", "lin"].map((scale) => html`<option key=${scale} value=${scale} selected=${scale === axis.scale}>${t(`communication.heat.spaced.${scale}`)}</option>`)}
      </select>
      ${wrong && html`<p class="wrong" id=${`${id}-wrong`} role="alert">${t(`communication.heat.wrong.${wrong}`, { most: MOST })}</p>`}
    </fieldset>`;
}

/** What a field is called. @param {{name: string, link: string | null}} field @param {any} t */
export const fieldWords = ({ name, link }, t) => `${t(`communication.heat.field.${name}`)}${link ? ` ${link.replace(",", " - ")}` : ""}`;
