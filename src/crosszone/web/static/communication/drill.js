import { html } from "../lib/dom.js";
import { Facts } from "../components/facts.js";
import { TableFrame } from "../components/table-frame.js";
import { useText } from "../lib/text.js";
import { Told } from "./long.js";
import { useWords } from "./words.js";

/** How much of the run makes progress, and every zone lost once. */
export function Drill({ found }) {
  const { label, amount, t } = useText();
  const { said, share } = useWords();
  const { goodput } = found;
  const title = label("drill_title");
  return html`
    <${Facts} facts=${[
      [label("drill_goodput"), html`<data value=${found.share}>${share(found.share)}</data>`],
      [t("communication.mtbf"), amount(goodput.mtbf_hours)],
      [label("drill_interval"), said("drill_every", { s: amount(Math.round(goodput.interval_s)), write: amount(goodput.checkpoint_s) })],
    ]} />
    <${TableFrame} label=${title}>
      <thead>
        <tr>
          <th scope="col">${label("drill_lost")}</th>
          ${["drill_left", "what_if_step", "drill_back", "drill_day"].map((key) => html`<th scope="col" key=${key} class="number">${label(key)}</th>`)}
          <th scope="col">${label("drill_plan")}</th>
        </tr>
      </thead>
      <tbody>
        ${found.losses.map((one) => html`
          <tr key=${one.zone}>
            <th scope="row">${one.zone}</th><td class="number">${amount(one.tokens_left_pct)}</td><td class="number">${amount(one.worth?.step_s)}</td>
            <td class="number">${one.back_after_s === null ? "-" : amount(one.back_after_s / 60)}</td><td class="number">${amount(one.usd_per_day)}</td>
            <td class="words">${one.worth?.plan ?? one.refusal[0]?.message ?? "-"}</td>
          </tr>`)}
      </tbody>
    <//>
    <${Told} notices=${found.losses.map((one) => one.told)} />
    <${Told} notices=${found.notes} />`;
}
