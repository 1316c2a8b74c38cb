import { html, useMemo } from "../lib/dom.js";
import { fetchJson } from "../lib/api.js";
import { linkTo } from "../lib/address.js";
import { useAsked } from "../lib/asked.js";
import { useText } from "../lib/text.js";
import { Refusals } from "../compare/refusals.js";
import { NearestCard } from "../plan/nearest-card.js";
import { ContactCard } from "./contact-card.js";
import { GroupsCard } from "./groups-card.js";
import { ReliabilityCard } from "./reliability-card.js";

/**
 * How far predictions are off: as a user meets them first, then with sources left out of the fit, then on the fit's rows.
 * @param {{address: import("../lib/address.js").Address, change: any}} given
 */
export function AccuracyPlace({ address, change }) {
  const { t, language } = useText();
  const question = useMemo(() => ({}), []);
  const { answer, notices, failed, busy } = useAsked(question, (_, signal) => fetchJson("calibrate/accuracy/summary", language, signal), { also: [language] });
  const calibrate = { place: "calibrate", tab: "accuracy", kind: null };
  const open = (event) => (event.preventDefault(), change(calibrate));
  return html`
    <div class="answers accuracy" data-place="accuracy" aria-busy=${busy && !answer}>
      <h2 class="visually-hidden">${t("places.accuracy")}</h2>
      <${Refusals} notices=${notices} failed=${failed} />
      ${answer && html`
        <${ContactCard} summary=${answer} />
        <${ReliabilityCard} summary=${answer} />
        <${NearestCard} />
        <${GroupsCard} summary=${answer} kind=${address.kind} choose=${(kind) => change({ kind }, { step: false })} />
        <p class="accuracy-foot">${t("accuracy.of_release", { release: answer.release })} <a href=${linkTo(calibrate)} onClick=${open}>${t("accuracy.every_run")}</a></p>`}
    </div>`;
}
