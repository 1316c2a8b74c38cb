import { html, useEffect, useMemo, useState } from "../lib/dom.js";
import { usePart } from "../lib/requests.js";
import { Card } from "../components/card.js";
import { useText } from "../lib/text.js";
import { SwitchRow } from "./switch-row.js";
import { WhatIf } from "./what-if.js";

/** Ways to send less, later or faster: turned here, predicted at once, written into the scenario on demand. */
export function Switches({ body, applying }) {
  const { t, language } = useText();
  const [turned, setTurned] = useState({});
  const any = Object.keys(turned).length > 0;
  const question = useMemo(() => body && { ...body, options: { switches: turned } }, [body, turned]);
  const listed = usePart("switches", question, language);
  const asked = usePart("what_if", any ? question : null, language);
  useEffect(() => setTurned((old) => (Object.keys(old).length ? {} : old)), [body]); // another scenario or way: its switches stand as they are

  const turn = (name, value) =>
    setTurned((old) => {
      const { [name]: _, ...rest } = old;
      return value === undefined ? rest : { ...rest, [name]: value };
    });
  const refusals = any ? asked.notices : [];
  const of = (name) => refusals.filter((notice) => notice.field === name || (Object.keys(turned).at(-1) === name && !(notice.field in turned)));
  const found = any && asked.asked === question ? asked.answer : null;
  return html`
    <${Card} id="switches" title=${t("communication.switch.heading")} aside=${t("communication.switch.about")}>
      <div class="switch-place">
        <ul class="switch-list">
          ${inOrder(listed.answer ?? [], turned).map((one) => html`
            <${SwitchRow} key=${one.name} one=${one} turned=${turned[one.name]} turn=${(value) => turn(one.name, value)} notices=${of(one.name)}
              letGo=${() => applying.apply(Object.fromEntries(one.sets.map((path) => [path, null])), one.name)} />`)}
        </ul>
        <div class="what-if" aria-live="polite">
          ${!any && html`<p class="empty">${t("communication.switch.turn_one")}</p>`}
          ${any && asked.answer && html`<${WhatIf} found=${asked.answer} old=${found === null} />`}
          ${any && html`
            <div class="card-bar">
              <button type="button" class="primary" disabled=${!found} onClick=${() => applying.apply(found.changes, Object.keys(turned).join(", "))}>${t("communication.apply")}</button>
              <button type="button" onClick=${() => setTurned({})}>${t("communication.reset")}</button>
            </div>`}
        </div>
      </div>
    <//>`;
}

/** Those that can be turned first. */
const inOrder = (all, turned) => {
  const off = (one) => one.reason !== null && turned[one.name] === undefined;
  return [...all.filter((one) => !off(one)), ...all.filter(off)];
};
