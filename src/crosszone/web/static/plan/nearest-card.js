import { html } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { TableFrame } from "../components/table-frame.js";
import { usePlanWords } from "./words.js";

/** Numbers stand beside the run, so that a phone shows them without scrolling. */
const NUMBERS = ["nearest_error", "nearest_distance", "nearest_mfu", "step_s"];
/** Differences of a run that are named; the JSON of the same answer has all. */
const MOST_DIFFERENCES = 4;

/** Measured runs that resemble the shown plan, with the error of each, and the best utilisation that was measured. */
export function NearestCard() {
  const { t, label, amount } = useText();
  const { prediction } = useAnswers();
  const { listed, said } = usePlanWords();
  const runs = prediction?.nearest_runs ?? [];
  if (!runs.length) return null;
  const signed = (value) => `${value > 0 ? "+" : ""}${value.toFixed(1)}`;
  const differences = ({ differs }) => listed(differs.slice(0, MOST_DIFFERENCES).map((name) => label(`differs_${name}`))) || label("nearest_same");
  return html`
    <${Card} id="nearest" title=${label("nearest_title")} aside=${t("plan.nearest.about")}>
      <${TableFrame} label=${label("nearest_title")}>
        <thead><tr>
          <th scope="col">${label("nearest_run")}</th>
          ${NUMBERS.map((key) => html`<th scope="col" class="number" key=${key}>${label(key)}</th>`)}
          <th scope="col">${label("nearest_strategy")}</th>
        </tr></thead>
        <tbody>
          ${runs.map((run) => html`
            <tr key=${run.id} data-run=${run.id}>
              <th scope="row">${run.model}<span class="below">${amount(run.gpus)} ${run.gpu}</span><span class="below">${run.id}</span></th>
              <td class="number">${signed(run.error_pct)}</td>
              <td class="number">${run.distance.toFixed(1)}</td>
              <td class="number">${amount(Number((100 * run.mfu).toPrecision(3)))}</td>
              <td class="number">${amount(run.step_time_s)}</td>
              <td>${run.strategy}<span class="below">${said("nearest_differs_line", { names: differences(run) })}</span></td>
            </tr>`)}
        </tbody>
      <//>
      <${BestUtilisation} prediction=${prediction} />
      <p class="table-note">${label("nearest_caption")}</p>
    <//>`;
}

/** The best that was measured on such GPUs beside what is predicted; marked where more is predicted. */
function BestUtilisation({ prediction }) {
  const { label } = useText();
  const { said } = usePlanWords();
  const best = prediction.best_utilisation;
  const percent = (share) => (100 * share).toFixed(1);
  if (!best) return html`<p class="card-line">${label("nearest_best_none")}</p>`;
  const { gpu, bits, model, id: run } = best;
  return html`
    <p class=${`card-line ${prediction.mfu.expected > best.mfu ? "wrong" : ""}`} data-best=${run}>
      ${said("nearest_best", { gpu, bits, model, run, best: percent(best.mfu), mfu: percent(prediction.mfu.expected) })}
    </p>`;
}
