import { html, useMemo, useState } from "../lib/dom.js";
import { fetchText } from "../lib/api.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { useFigures } from "./figures.js";
import { Name } from "./name.js";
import { Refusals } from "./refusals.js";
import { Sure } from "./sure.js";

/**
 * One saved result with its main figures.
 * @param {{row: import("./results.js").ResultRow, at: number, toggle: () => void, rename: (id: string, name: string) => Promise<void>, remove: () => Promise<void>, change: any}} given `at`: its place among the chosen, -1: not chosen
 */
export function Row({ row, at, toggle, rename, remove, change }) {
  const { t, framework: called, language } = useText();
  const { figure, range } = useFigures();
  const scenario = useScenario();
  const [notices, setNotices] = useState([]);
  const saved = useMemo(() => new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" }).format(new Date(row.created)), [row.created, language]);
  const { step_time_s: step, tokens_per_s: tokens, memory_gib: memory, usd, fits, framework, degrees, predicted } = row.headline;
  const open = () =>
    fetchText(`results/${row.id}/scenario`, language).then(
      (text) => {
        scenario.importText(`file:${row.name}`, text);
        change({ place: null, plan: "given" });
      },
      (error) => setNotices(error.notices ?? []),
    );
  /** Below a measured figure: what was predicted. @param {string} name */
  const beside = (name) =>
    predicted?.[name] && html`<span class="below" data-predicted=${name}>${t("compare.was_predicted", { value: figure(name, predicted[name].value) })}</span>`;
  const way = [framework && called(framework), ...Object.entries(degrees ?? {}).map(([key, value]) => `${key} ${value}`)].filter(Boolean).join(" · ");
  return html`
    <tr class=${at >= 0 ? "chosen" : ""} data-result=${row.id}>
      <td><input type="checkbox" checked=${at >= 0} aria-label=${t("compare.select", { name: row.name })} onChange=${toggle} /></td>
      <th scope="row"><${Name} row=${row} rename=${rename} /><${Refusals} notices=${notices} /></th>
      <td><span class=${`compare-kind ${row.kind}`}>${t(`compare.kind.${row.kind}`)}</span></td>
      <td class="number">${figure("step_time_s", step?.value)}<span class="below">${range("step_time_s", step)}</span>${beside("step_time_s")}</td>
      <td class="number">${figure("tokens_per_s", tokens?.value)}${beside("tokens_per_s")}</td>
      <td class="number">${figure("memory_gib", memory?.value)}${fits === false && html`<span class="below wrong">${t("compare.too_full")}</span>`}</td>
      <td class="number">${figure("usd", usd?.value)}</td>
      <td class="compare-wide">${way || "-"}</td>
      <td class="compare-wide"><time datetime=${row.created}>${saved}</time></td>
      <td class="compare-actions">
        ${row.kind === "predicted" && html`<button type="button" class="quiet small" title=${t("compare.open_title", { name: row.name })} aria-label=${t("compare.open_title", { name: row.name })} onClick=${open}>${t("compare.open")}</button>`}
        <a class="button small" href=${`/api/v1/calibrate/sheet/results/${row.id}?lang=${language}`} download title=${t("compare.sheet_title", { name: row.name })} aria-label=${t("compare.sheet_title", { name: row.name })}>${t("compare.sheet")}</a>
        <${Sure} small=${true} label=${t("compare.delete")} title=${t("compare.delete_title", { name: row.name })} question=${t("compare.delete_sure", { name: row.name })} act=${remove} />
      </td>
    </tr>`;
}
