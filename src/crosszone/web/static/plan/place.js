import { html, useMemo } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { AnswerStrip } from "../components/answer-strip.js";
import { Notices } from "../components/notices.js";
import { Actions, ObjectiveChooser } from "./actions.js";
import { AskCard } from "./ask-card.js";
import { Basis } from "./basis.js";
import { Heading } from "./heading.js";
import { Inputs } from "./inputs.js";
import { MapCard } from "./map-card.js";
import { MemoryCard } from "./memory-card.js";
import { NearestCard } from "./nearest-card.js";
import { usePlaces } from "./places.js";
import { PlansCard } from "./plans-card.js";
import { Progress } from "./progress.js";
import { RadarCard } from "./radar-card.js";
import { RankGrid } from "./rank-grid.js";
import { Refusal } from "./refusal.js";
import { RejectedCard } from "./rejected-card.js";
import { SoftwareCard } from "./software-card.js";
import { StepCard } from "./step-card.js";
import { WhenSeen } from "./when-seen.js";
import { WhyCard } from "./why-card.js";

/** Home: the answer first, then where it runs, the other plans, and why. */
export function PlanPlace() {
  const { t } = useText();
  const { name, lost } = useScenario();
  const { prediction, plans, stale, busy, notices, planNotices } = useAnswers();
  const places = usePlaces();
  const settled = prediction || notices.length > 0 || planNotices.length > 0; // figures first, then what takes longer to draw
  const told = useMemo(() => toldOnce(plans?.warnings, prediction?.warnings), [plans, prediction]);
  if (lost) return html`<section class="answers plan"><p class="refusal" role="alert">${lost.message}</p></section>`;
  if (!name) return html`<section class="answers plan" aria-busy="true"><p class="empty">${t("plan.empty")}</p></section>`;
  return html`
    <section class=${`answers plan ${stale || notices.length || planNotices.length ? "stale" : ""}`} aria-label=${t("answers")} aria-busy=${String(busy)} data-place="plan">
      <div class="plan-top"><${Heading} /><${ObjectiveChooser} /><${Actions} /></div>
      <${Refusal} />
      <div class="fades">${prediction ? html`<${AnswerStrip} prediction=${prediction} stale=${stale} />` : html`<div class="strip waiting" aria-hidden="true"></div>`}</div>
      <${Progress} />
      <${Basis} />
      <div class="fades">
        <${SoftwareCard} />
        <div class="plan-main">${settled ? html`<${MapCard} places=${places} />` : html`<div class="card map-waiting"></div>`}<${StepCard} /></div>
        <${PlansCard} places=${places} />
        <${NearestCard} />
        ${prediction && html`
        <div class="plan-grid">
          <div><${WhyCard} /><${RejectedCard} /></div>
          <div><${MemoryCard} /><${WhenSeen}><${RadarCard} /><//><${AskCard} /></div>
        </div>
        <${WhenSeen}><${RankGrid} /><//>`}
        <${Notices} notices=${told} lineOf=${(notice) => notice.line} jump=${null} />
        <${Inputs} />
      </div>
    </section>`;
}

/** Notices of the search and of the plan shown, each once. */
function toldOnce(...lists) {
  const found = new Map();
  for (const notice of lists.flat()) if (notice) found.set(`${notice.code} ${notice.message}`, notice);
  return [...found.values()];
}
