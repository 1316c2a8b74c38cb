import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { Card } from "../components/card.js";
import { TableFrame } from "../components/table-frame.js";

/**
 * The run beside its prediction: parts of a step, what drifted, and whether planning anew would pay.
 * @param {{twin: any}} given null: nothing was measured yet
 */
export function Twin({ twin }) {
  const { t, amount, percent } = useText();
  const { time, range } = useTime();
  if (!twin?.last_step && twin?.last_step !== 0) return null;
  const rows = [...twin.parts, twin.step];
  const drifted = new Map(twin.drifts.map((drift) => [drift.part, drift]));
  return html`
    <${Card} id="train-twin" title=${t("train.twin")} aside=${t("train.twin_about", { window: amount(twin.window), step: amount(twin.last_step) })}>
      <${Told} notices=${twin.drifts.map((drift) => drift.notice)} />
      ${twin.replan?.notice && html`<${Told} notices=${[twin.replan.notice]} />`}
      <${TableFrame} label=${t("train.twin")}>
        <thead>
          <tr>
            <th scope="col">${t("train.part_column.part")}</th>
            ${["measured", "predicted", "range", "ratio"].map((name) => html`<th scope="col" key=${name} class="number">${t(`train.part_column.${name}`)}</th>`)}
            <th scope="col">${t("train.part_column.verdict")}</th>
          </tr>
        </thead>
        <tbody class="train-parts">
          ${rows.map((part) => html`
            <tr key=${part.name} data-part=${part.name} class=${part.name === "step" ? "whole" : ""}>
              <th scope="row">${t(`train.part.${part.name}`)}</th>
              <td class="number">${time(part.measured_s)}</td>
              <td class="number">${time(part.predicted_s)}</td>
              <td class="number">${part.high_s > 0 ? range(part.low_s, part.high_s) : "-"}</td>
              <td class="number">${part.ratio === null ? "-" : percent(part.ratio)}</td>
              <td class=${drifted.has(part.name) ? "drift" : ""}>${verdict(part, drifted.get(part.name), t)}</td>
            </tr>`)}
        </tbody>
      <//>
      <${Told} notices=${twin.notices} />
    <//>`;
}

/** In words whether a part is as predicted. */
function verdict(part, drift, t) {
  if (drift) return t(`train.drift.${drift.kind}`, { step: drift.since_step });
  return part.inside === null || part.predicted_s === 0 ? "-" : t(part.inside ? "train.inside" : "train.outside");
}

function Told({ notices }) {
  const worded = notices.filter((notice) => notice.message);
  if (!worded.length) return null;
  return html`<ul class="train-notices told">${worded.map((notice) => html`<li class=${notice.level}>${notice.message} <span class="hint">${notice.hint}</span></li>`)}</ul>`;
}
