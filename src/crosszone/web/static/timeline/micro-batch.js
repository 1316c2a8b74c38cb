import { html, useMemo } from "../lib/dom.js";
import { usePart } from "../lib/requests.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { Card } from "../components/card.js";
import { Facts } from "../components/facts.js";
import { Figure } from "../components/figure.js";
import { Gantt } from "../charts/gantt.js";
import { MicroBatchTables } from "./micro-batch-tables.js";
import { Refusal } from "./refusal.js";

const NONE = new Set(["idle"]);
const LANES = ["stages", "links"];

/**
 * One micro-batch on its way through stages and links, and how busy the GPUs are meanwhile.
 * @param {{number: number, body: any, view: any, open: (number: number | null) => void}} given
 */
export function MicroBatch({ number, body, view, open }) {
  const { t, language, percent, amount } = useText();
  const { time, range } = useTime();
  const question = useMemo(() => ({ ...body, options: { micro_batch: number } }), [body, number]);
  const asked = usePart("micro_batch", question, language);
  const found = asked.answer?.micro_batch;
  const most = (view?.micro_batches ?? asked.answer?.micro_batches ?? 1) - 1;
  const bounds = useMemo(() => found && [found.start_s, found.end_s], [found]);
  const go = (to) => open(Math.max(0, Math.min(most, to)));
  const typed = (event) => Number.isInteger(event.target.valueAsNumber) && go(event.target.valueAsNumber);
  const aside = html`
    <span class="timeline-steps">
      <button type="button" class="small" aria-label=${t("timeline.previous")} disabled=${number <= 0} onClick=${() => go(number - 1)}>←</button>
      <input type="number" min="0" max=${most} value=${number} aria-label=${t("timeline.micro_batch")} onChange=${typed} />
      <button type="button" class="small" aria-label=${t("timeline.next")} disabled=${number >= most} onClick=${() => go(number + 1)}>→</button>
      <button type="button" class="small" onClick=${() => open(null)}>${t("close")}</button>
    </span>`;
  return html`
    <${Card} id="timeline-micro-batch" title=${t("timeline.micro_batch_number", { number: amount(number) })} aside=${aside}>
      <${Refusal} notices=${asked.notices} />
      ${found && html`
        <${Facts} facts=${[
          [t("timeline.way"), range(found.start_s, found.end_s)],
          [t("timeline.column.seconds"), time(found.seconds)],
          [t("timeline.usage"), html`<span data-figure="usage"><${Figure} path=${`timeline.micro_batch[${found.micro_batch}].usage`}>${percent(found.usage)}<//></span>`],
        ]} />
        <${Gantt} name="micro-batch" label=${t("timeline.micro_batch_label", { number, usage: percent(found.usage) })} view=${asked.answer} groups=${LANES} hidden=${NONE}
          bounds=${bounds} selected=${number} others onMicroBatch=${open} key=${number} />
        <${MicroBatchTables} found=${found} lanes=${asked.answer.lanes} kinds=${asked.answer.kinds} />`}
    <//>`;
}
