import { html, useMemo } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { Applied, useApply } from "./apply.js";
import { Economy } from "./economy.js";
import { HeatMap } from "./heat.js";
import { Hosts } from "./hosts.js";
import { Links } from "./links.js";
import { OnDemand } from "./on-demand.js";
import { Refused } from "./long.js";
import { Suggestions, useSuggestions } from "./suggestions.js";
import { Switches } from "./switches.js";
import { Traffic } from "./traffic.js";
import { Verdict } from "./verdict.js";

/** Where the bytes of a step go, what would change that, when the choice flips, and what it costs. @param {{address: import("../lib/address.js").Address, change: any}} given */
export function CommunicationPlace({ address, change }) {
  const { t } = useText();
  const { body, prediction, traffic, notices, planNotices, stale, busy, plan } = useAnswers();
  const scenario = useScenario();
  const applying = useApply();
  const suggested = useSuggestions(body);
  const known = prediction !== null && traffic !== null;
  const refused = useMemo(() => (scenario.notices.length ? scenario.notices : body ? notices : planNotices), [scenario.notices, body, notices, planNotices]);
  if (!known)
    return html`
      <div class="answers communication" data-place="communication">
        ${refused.length ? html`<${Refused} notices=${refused} />` : html`<p class="empty" role="status">${busy || scenario.busy ? t("communication.waiting") : t("communication.nothing")}</p>`}
      </div>`;
  const old = stale || refused.length > 0;
  return html`
    <div class=${`answers communication ${old ? "old" : ""}`} data-place="communication" data-ready=${old ? "no" : "yes"}>
      <${Applied} applying=${applying} />
      <${Refused} notices=${refused} />
      <${Verdict} prediction=${prediction} traffic=${traffic} zones=${scenario.description?.cluster.zones.length ?? 1} plan=${plan} />
      <${Traffic} prediction=${prediction} traffic=${traffic} />
      <${Suggestions} suggested=${suggested} body=${body} applying=${applying} />
      <${Switches} body=${body} applying=${applying} />
      <${HeatMap} address=${address} change=${change} applying=${applying} />
      <${Economy} body=${body} />
      <${Links} traffic=${traffic} />
      <${Hosts} settings=${suggested.answer?.host ?? []} />
      <${OnDemand} />
    </div>`;
}
