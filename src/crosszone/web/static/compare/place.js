import { html, useEffect, useMemo } from "../lib/dom.js";
import { postJson } from "../lib/api.js";
import { useAsked } from "../lib/asked.js";
import { useText } from "../lib/text.js";
import { AddResult } from "./add-result.js";
import { Bars } from "./bars.js";
import { Differences } from "./differences.js";
import { Empty } from "./empty.js";
import { List } from "./list.js";
import { Refusals } from "./refusals.js";
import { useResults } from "./results.js";
import { Timelines } from "./timelines.js";

/** Results of one comparison, as the server takes them. */
const MOST = 50;

/**
 * Saved results, and those chosen drawn to one scale with their differences.
 * @param {{address: import("../lib/address.js").Address, change: any}} given
 */
export function ComparePlace({ address, change }) {
  const { t, language } = useText();
  const results = useResults(language);
  const { rows } = results;
  const asked = useMemo(() => [...new Set((address.results ?? "").split(",").filter(Boolean))], [address.results]);
  const chosen = useMemo(
    () => asked.filter((id) => rows?.some((row) => row.id === id) || (rows && results.more)),
    [asked, rows, results.more],
  );
  const choose = (ids) => change({ results: ids.join(",") || null }, { step: false });
  const names = useMemo(() => chosen.map((id) => rows.find((row) => row.id === id)?.name ?? id), [chosen, rows]);

  const question = useMemo(
    () => (chosen.length > 1 ? { items: chosen.slice(0, MOST).map((result) => ({ result })) } : null),
    [chosen.join(), names.join()],
  );
  const beside = useAsked(question, (sent, signal) => postJson("compare", sent, language, signal), { also: [language] });
  const found = question && beside.asked?.items.length ? beside.answer : null;
  useEffect(() => {
    if (rows && !results.more && asked.length > chosen.length) choose(chosen);
  }, [rows, results.more]);

  const remove = async (ids) => {
    await results.remove(ids);
    choose(chosen.filter((id) => !ids.includes(id)));
  };
  return html`
    <div class="answers compare" data-place="compare" aria-busy=${!rows || beside.busy}>
      <h2 class="visually-hidden">${t("places.compare")}</h2>
      <${Refusals} notices=${results.notices} failed=${results.failed} />
      ${!rows && !results.failed && !results.notices.length && html`<p class="empty">${t("compare.loading")}</p>`}
      ${rows?.length === 0 && html`<${Empty} save=${results.save} change=${change} />`}
      ${rows?.length > 0 && html`<${List} results=${results} chosen=${chosen} choose=${choose} remove=${remove} change=${change} />`}
      ${rows && html`<${AddResult} save=${results.save} />`}
      ${rows?.length > 0 && chosen.length < 2 && html`
        <p class="compare-hint">${chosen.length ? t("compare.one_chosen", { name: names[0] }) : t("compare.none_chosen")}</p>`}
      ${chosen.length > MOST && html`<p class="compare-hint">${t("compare.too_many", { limit: MOST })}</p>`}
      ${question && html`<${Refusals} notices=${beside.notices} failed=${beside.failed} />`}
      ${found && html`
        <${Refusals} notices=${found.notices} />
        <${Bars} found=${found} by=${address.tab} choose=${(tab) => change({ tab }, { step: false })} />
        <${Timelines} sides=${found.sides} />
        <${Differences} found=${found} makeFirst=${(id) => choose([id, ...chosen.filter((one) => one !== id)])} />`}
    </div>`;
}
