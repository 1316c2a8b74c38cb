import { html, useEffect, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";

/** Milliseconds without a key until a number is taken. */
const PAUSE_MS = 350;
const POWERSGD = "powersgd";
/** Rank of PowerSGD until one is typed. */
const RANK = 4;
/** Numbers from 0 to 1 slide. */
const slides = (one) => one.low === 0 && one.high === 1;

/** The control of a switch by what it takes. @param {{id: string, one: any, turned: any, turn: (value: any) => void, disabled: boolean, about: string}} given */
export function SwitchControl(given) {
  const { one } = given;
  if (one.takes === "flag") return html`<${Flag} ...${given} />`;
  return Array.isArray(one.takes) ? html`<${Choice} ...${given} />` : html`<${NumberField} ...${given} />`;
}

function Flag({ id, one, turned, turn, disabled, about }) {
  const value = turned ?? one.now;
  return html`<input type="checkbox" id=${id} role="switch" checked=${value === true} disabled=${disabled} aria-describedby=${about} onChange=${(event) => turn(event.target.checked)} />`;
}

function Choice({ id, one, turned, turn, disabled, about }) {
  const { t } = useText();
  const [kind, rank] = String(turned ?? one.now ?? "").split(":");
  const choose = (next) => turn(next === POWERSGD ? `${POWERSGD}:${RANK}` : next);
  return html`
    <select id=${id} disabled=${disabled} aria-describedby=${about} value=${kind} onChange=${(event) => choose(event.target.value)}>
      ${one.now === null && turned === undefined && html`<option value="" selected>-</option>`}
      ${one.takes.map((value) => html`
        <option key=${value} value=${value} selected=${value === kind} disabled=${value in one.refused && value !== kind} title=${one.refused[value]?.message}>${value}</option>`)}
    </select>
    ${kind === POWERSGD && turned !== undefined && html`
      <label class="rank">${t("communication.switch.rank")} <input type="number" min="1" max="4096" value=${rank ?? RANK} onChange=${(event) => turn(`${POWERSGD}:${event.target.value}`)} /></label>`}`;
}

function NumberField({ id, one, turned, turn, disabled, about }) {
  const { t } = useText();
  const value = turned ?? one.now;
  const [typed, setTyped] = useState(null);
  useEffect(() => setTyped(null), [turned, one.now]);
  useEffect(() => {
    if (typed === null || typed === "") return undefined;
    const timer = setTimeout(() => turn(Number(typed)), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  const shown = typed ?? (typeof value === "number" ? Number(value.toPrecision(6)) : "");
  const bounds = { min: one.low, max: one.high, step: one.takes === "count" ? 1 : "any", disabled };
  return html`
    ${slides(one) && html`<input type="range" ...${bounds} step="0.05" value=${shown === "" ? 1 : shown} aria-label=${one.title} onInput=${(event) => setTyped(event.target.value)} />`}
    <input type="number" id=${id} ...${bounds} value=${shown} placeholder=${one.now === null ? t("communication.switch.automatic") : ""} aria-describedby=${about} onInput=${(event) => setTyped(event.target.value)} />
    ${one.name === "bucket" && html`<button type="button" class="small" disabled=${disabled} onClick=${() => turn("best")}>${t("communication.switch.best")}</button>`}`;
}
