import { html } from "../lib/dom.js";
import { More } from "../components/more.js";
import { TableFrame } from "../components/table-frame.js";
import { useText } from "../lib/text.js";
import { Told } from "./long.js";
import { useWords } from "./words.js";

/** Every change of the cluster by what it returns: should one add that zone? */
export function Marginal({ found }) {
  const { label, amount } = useText();
  const { change, chance } = useWords();
  const title = label("marginal_title");
  return html`
    <${TableFrame} label=${title}>
      <thead>
        <tr>
          <th scope="col">${label("marginal_change")}</th><th scope="col">${label("marginal_advice")}</th>
          ${["suggest_gain", "marginal_day", "marginal_token", "marginal_return", "marginal_chance"].map((key) => html`<th scope="col" key=${key} class="number">${label(key)}</th>`)}
        </tr>
      </thead>
      <tbody>
        <${More} most=${12} columns=${7} items=${found.variants} row=${(one) => html`
          <tr key=${`${one.kind} ${one.target} ${one.change.message}`} data-verdict=${one.verdict}>
            <th scope="row" class="words">${one.change.message}</th><td class="words">${one.advice.message}</td>
            <td class="number">${change(one.tokens_pct)}</td><td class="number">${change(one.usd_per_day_more)}</td><td class="number">${change(one.usd_per_million_tokens_pct)}</td>
            <td class="number">${amount(one.tokens_per_s_per_usd_hour)}</td><td class="number">${chance(one.chance_faster)}</td>
          </tr>`} />
      </tbody>
    <//>
    <${Told} notices=${found.notes} />`;
}
