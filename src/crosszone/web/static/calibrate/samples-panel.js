import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { Drop } from "./drop.js";
import { useFileWork } from "./file-work.js";
import { FitFound } from "./fit-found.js";

/** Kernels that were measured on a GPU. @param {{own: import("./own.js").Own}} given */
export function SamplesPanel({ own }) {
  const { t } = useText();
  const work = useFileWork("calibrate/samples", () => ({}));
  return html`
    <${Card} id="calibrate-samples" title=${t("calibrate.samples.heading")} aside=${t("calibrate.samples.about")}>
      <p class="calibrate-empty">${t("calibrate.samples.how")}</p>
      <pre class="calibrate-code">crosszone calibrate kernels -o samples.csv</pre>
      <${Drop} id="drop-samples" label=${t("calibrate.samples.open")} accept=".csv,text/csv" work=${work} />
    <//>
    ${work.found && html`<${FitFound} found=${work.found} own=${own} />`}`;
}
