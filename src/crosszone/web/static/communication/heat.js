import { html, useEffect, useMemo, useState } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { useScenario } from "../lib/scenario.js";
import { Card } from "../components/card.js";
import { useText } from "../lib/text.js";
import { axisText, fieldsOf, readAxis, usualAxes, wrongOf } from "./heat-axes.js";
import { AxisForm } from "./heat-form.js";
import { HeatResult } from "./heat-result.js";
import { LongControl, useLong } from "./long.js";

/** The best plan at every value of two fields, and the line on which the choice flips. */
export function HeatMap({ address, change, applying }) {
  const { t, amount } = useText();
  const { body, fields: given, description } = useScenario();
  const { objective } = useAnswers();
  const long = useLong("sweep", "sweep");
  const fields = useMemo(() => (description ? fieldsOf(description) : []), [description]);
  const [typed, setTyped] = useState(null);
  const [free, setFree] = useState(false);
  const [local, setLocal] = useState(true);
  const [usualX, usualY] = useMemo(() => (fields.length ? usualAxes(fields) : [null, null]), [fields]);
  const linked = readAxis(address.x) && readAxis(address.y) ? [readAxis(address.x), readAxis(address.y)] : null;
  const [x, y] = typed ?? linked ?? [usualX, usualY];
  const pinned = Boolean(given?.strategy);

  const start = () => {
    change({ x: axisText(x), y: axisText(y) }, { step: false });
    long.start({ ...body, x: axisText(x), y: axisText(y), objective, free: free || !pinned, local_updates: local }, body);
  };
  useEffect(() => {
    if (linked && body && !long.answer && !long.running) start(); // a link that carries axes shows its map
  }, [body !== null]);
  if (!x || !body) return null;
  const wrong = wrongOf(x) !== null || wrongOf(y) !== null;
  const same = x.field === y.field;
  const capped = x.field.endsWith(".gbps") && description.cluster.zones.some((zone) => zone.uplink_gbps !== null && zone.uplink_gbps < Number(x.high));
  return html`
    <${Card} id="heat" title=${t("communication.heat.heading")} aside=${t("communication.heat.about")}>
      <div class="heat-form">
        <${AxisForm} name="x" axis=${x} fields=${fields} set=${(axis) => setTyped([axis, y])} />
        <${AxisForm} name="y" axis=${y} fields=${fields} set=${(axis) => setTyped([x, axis])} />
        <div class="heat-how">
          <div class="segmented" role="group" aria-label=${t("communication.heat.pins")}>
            <button type="button" aria-pressed=${String(!free && pinned)} disabled=${!pinned} onClick=${() => setFree(false)} title=${t("communication.heat.pinned_title")}>${t("communication.heat.pinned")}</button>
            <button type="button" aria-pressed=${String(free || !pinned)} onClick=${() => setFree(true)} title=${t("communication.heat.free_title")}>${t("communication.heat.free")}</button>
          </div>
          <label><input type="checkbox" checked=${local} onChange=${(event) => setLocal(event.target.checked)} /> ${t("communication.heat.local")}</label>
        </div>
        <${LongControl} long=${long} subject=${body} begin=${start} disabled=${wrong || same}
          words=${wrong ? t("communication.heat.run") : t("communication.heat.run_cells", { count: amount(Number(x.count) * Number(y.count)) })} />
        ${same && html`<p class="wrong" role="alert">${t("communication.heat.wrong.same")}</p>`}
        ${capped && html`<p class="hint">${t("communication.heat.capped")}</p>`}
      </div>
      ${long.answer
        ? html`<${HeatResult} sweep=${long.answer} fields=${fields} description=${description} given=${given} applying=${applying} />`
        : html`<p class="empty">${t("communication.heat.first")}</p>`}
    <//>`;
}
