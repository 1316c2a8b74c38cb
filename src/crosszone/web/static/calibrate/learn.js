import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { CollectivesPanel } from "./collectives-panel.js";
import { LogPanel } from "./log-panel.js";
import { SamplesPanel } from "./samples-panel.js";
import { SheetPanel } from "./sheet-panel.js";
import { TracePanel } from "./trace-panel.js";

const PANELS = { log: LogPanel, trace: TracePanel, samples: SamplesPanel, collectives: CollectivesPanel, sheet: SheetPanel };

/** Learn from what was measured. @param {{own: import("./own.js").Own, address: import("../lib/address.js").Address, change: any}} given */
export function Learn({ own, address, change }) {
  const { t } = useText();
  const kind = address.kind in PANELS ? address.kind : "log";
  const Panel = PANELS[kind];
  return html`
    <div class="calibrate-kinds">
      <div class="segmented" role="group" aria-label=${t("calibrate.kinds")}>
        ${Object.keys(PANELS).map((one) => html`<button type="button" key=${one} aria-pressed=${String(one === kind)} onClick=${() => change({ kind: one })}>${t(`calibrate.kind.${one}`)}</button>`)}
      </div>
    </div>
    <${Panel} key=${kind} own=${own} change=${change} />`;
}
