import { html, useMemo, useState } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useForm } from "./form.js";
import { LinkEditor } from "./link-editor.js";
import { linksOf } from "./zone-edits.js";

/** Every pair of zones: rate from the zone of the row to the zone of the column, and round-trip time. @param {{zones: any[]}} given */
export function LinkMatrix({ zones }) {
  const { t } = useText();
  const { fields, description, noticeAt } = useForm();
  const [chosen, setChosen] = useState(null);
  const names = zones.map((zone) => String(zone?.name ?? "?"));
  const shown = chosen && chosen[0] < zones.length && chosen[1] < zones.length ? chosen : null;
  const links = useMemo(() => new Map((description?.cluster.links ?? []).map((link) => [pairKey(link.between), link])), [description]);
  const linkOf = (from, to) => links.get(pairKey([names[from], names[to]]));
  const wrong = useMemo(
    () => new Set(linksOf(fields).flatMap((link, at) => (noticeAt(["cluster", "links", at])?.level === "error" ? [pairKey(link?.between ?? [])] : []))),
    [fields, noticeAt],
  );
  // thousands of cells where there are many zones: drawn anew only when one of them changed
  const table = useMemo(
    () => html`
      <div class="table-frame matrix" role="group" aria-label=${t("form.links")} tabindex="0">
        <table>
          <thead>
            <tr><th scope="col" class="corner">${t("form.from_to")}</th>${names.map((name) => html`<th scope="col" title=${name}><span>${name}</span></th>`)}</tr>
          </thead>
          <tbody>
            ${names.map((name, row) => html`
              <tr key=${row}>
                <th scope="row" title=${name}><span>${name}</span></th>
                ${names.map((_, column) =>
                  row === column
                    ? html`<td class="self" aria-hidden="true"></td>`
                    : html`<td><${Cell} from=${names[row]} to=${names[column]} link=${linkOf(row, column)}
                        wrong=${wrong.has(pairKey([names[row], names[column]]))} chosen=${shown !== null && shown.includes(row) && shown.includes(column)}
                        choose=${() => setChosen(row < column ? [row, column] : [column, row])} /></td>`)}
              </tr>`)}
          </tbody>
        </table>
      </div>`,
    [names.join("\n"), links, [...wrong].join(), shown?.join(), t],
  );
  return html`
    <section aria-labelledby="links-title" class="links-part">
      <div class="part-head"><h3 id="links-title" data-field="cluster.links" tabindex="-1">${t("form.links")}</h3><p class="aside">${t("form.links_about")}</p></div>
      ${table}
      <p class="legend">
        <span class="sample typed"></span>${t("form.legend_typed")} <span class="sample derived"></span>${t("form.legend_derived")}
        <span class="sample example"></span>${t("form.legend_example")}
      </p>
      ${shown
        ? html`<${LinkEditor} key=${shown.join()} pair=${[names[shown[0]], names[shown[1]]]} link=${linkOf(...shown)} close=${() => setChosen(null)} />`
        : html`<p class="quiet-text pick">${t("form.pick_link")}</p>`}
    </section>`;
}

function Cell({ from, to, link, wrong, chosen, choose }) {
  const { t, label, amount } = useText();
  if (!link) return html`<button type="button" class="cell" aria-pressed=${String(chosen)} onClick=${choose}>
    <span class="visually-hidden">${t("form.cell_unknown", { from, to })}</span><span aria-hidden="true">…</span></button>`;
  const back = link.between[0] === to;
  const gbps = back ? link.gbps_back : link.gbps;
  const rate = link.origins[back ? "gbps_back" : "gbps"];
  const rtt = link.origins.rtt_ms;
  const words = t("form.cell", {
    from, to, gbps: amount(gbps), rate: label(`origin_${rate}`), rtt: amount(rounded(link.rtt_ms.expected)), delay: label(`origin_${rtt}`),
  });
  return html`
    <button type="button" class=${`cell ${wrong ? "wrong" : ""}`} aria-pressed=${String(chosen)} title=${words} onClick=${choose}
      data-link=${`${from} ${to}`}>
      <span class="visually-hidden">${words}</span>
      <span class=${kindOf(rate)} data-figure="gbps" aria-hidden="true">${amount(gbps)}</span>
      <span class=${`rtt ${kindOf(rtt)}`} data-figure="rtt" aria-hidden="true">${amount(rounded(link.rtt_ms.expected))} ms</span>
    </button>`;
}

const pairKey = (pair) => [...pair].sort().join("\n");
const kindOf = (origin) => (["typed", "measured", "default_link"].includes(origin) ? "typed" : origin === "example" ? "example" : "derived");
const rounded = (value) => Number(value.toPrecision(3));
