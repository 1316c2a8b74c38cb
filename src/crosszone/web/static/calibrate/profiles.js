import { html } from "../lib/dom.js";
import { OperatorsCard } from "./operators-card.js";
import { OwnCard } from "./own-card.js";
import { ShippedCard } from "./shipped-card.js";

/** Own profiles, operators that were measured, and the values that come with CrossZone. @param {{own: import("./own.js").Own, learn: () => void}} given */
export function Profiles({ own, learn }) {
  return html`
    <${OwnCard} own=${own} learn=${learn} />
    <${OperatorsCard} operators=${own.list?.operators ?? null} />
    <${ShippedCard} used=${own.list?.default ?? null} />`;
}
