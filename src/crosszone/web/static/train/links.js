import { html, useEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { fetchJson, postJson } from "../lib/api.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { useTime } from "../lib/time.js";
import { useWork } from "../lib/work.js";
import { TableFrame } from "../components/table-frame.js";
import { useWords } from "./words.js";

/** Links between the selected environments, as they were measured; measured anew here. @param {{nodes: string[], entries: import("./entries.js").Entry[], change: any}} given */
export function Links({ nodes, entries, change }) {
  const { t, amount, language } = useText();
  const { time } = useTime();
  const words = useWords();
  const scenario = useScenario();
  const [links, setLinks] = useState([]);
  const [at, setAt] = useState(null);
  const { busy, said, setSaid, during } = useWork();
  const stopped = useRef(false);
  const pairs = useMemo(() => nodes.flatMap((first, place) => nodes.slice(place + 1).map((second) => [first, second])), [nodes]);
  const reload = () => fetchJson("environments/links", language).then(({ entries: found }) => setLinks(found), () => {});
  useEffect(() => {
    reload();
    return () => (stopped.current = true);
  }, []);
  const nameOf = (id) => entries.find((entry) => entry.id === id)?.value.name ?? id;
  const between = (first, second) => links.map((link) => link.value).find((link) => [link.first, link.second].sort().join("\n") === [first, second].sort().join("\n"));
  const known = pairs.map(([first, second]) => ({ first, second, link: between(first, second) })).filter(({ link }) => link);
  const measure = () =>
    during(async () => {
      stopped.current = false;
      try {
        for (const [place, [first, second]] of pairs.entries()) {
          if (stopped.current) break;
          setAt(place);
          await postJson("environments/measure", { first, second }, language);
          await reload();
        }
      } finally {
        setAt(null);
      }
      setSaid({ words: t("train.links.done") });
    });
  const plan = () =>
    during(async () => {
      const { cluster } = await postJson("environments/cluster", { nodeIds: nodes }, language);
      scenario.setField(["cluster"], cluster);
      change({ place: null, plan: null });
    });
  return html`
    <div class="train-links">
      <div class="bar">
        <h3>${t("train.links.heading")}</h3>
        <span class="quiet-text">${t("train.links.known", { known: amount(known.length), count: amount(pairs.length) })}</span>
        <span class="grow"></span>
        <span class=${`said ${said?.wrong ? "wrong" : ""}`} role="status">${at === null ? said?.words : t("train.links.at", { at: amount(at + 1), count: amount(pairs.length), first: nameOf(pairs[at]?.[0]), second: nameOf(pairs[at]?.[1]) })}</span>
        ${at !== null && html`<button type="button" class="quiet" onClick=${() => (stopped.current = true)}>${t("train.links.stop")}</button>`}
        <button type="button" disabled=${busy} onClick=${measure} title=${t("train.links.measure_title")}>${t("train.links.measure")}</button>
        <button type="button" class="quiet" disabled=${busy} onClick=${plan} title=${t("train.links.plan_title")}>${t("train.links.plan")}</button>
      </div>
      ${known.length > 0 && html`
        <${TableFrame} label=${t("train.links.heading")}>
          <thead><tr><th scope="col">${t("train.links.between")}</th><th scope="col" class="number">${t("train.links.rtt")}</th><th scope="col" class="number">${t("train.links.there")}</th>
            <th scope="col" class="number">${t("train.links.back")}</th><th scope="col">${t("train.links.when")}</th></tr></thead>
          <tbody>
            ${known.map(({ link }) => html`
              <tr key=${link.first + link.second}>
                <th scope="row">${nameOf(link.first)} → ${nameOf(link.second)}</th>
                <td class="number">${time(link.rtt_ms / 1000)}</td>
                <td class="number">${link.gbps === null ? "-" : `${amount(link.gbps)} Gbit/s`}</td>
                <td class="number">${link.gbps_back === null ? "-" : `${amount(link.gbps_back)} Gbit/s`}</td>
                <td><time>${words.when(link.measured * 1000)}</time></td>
              </tr>`)}
          </tbody>
        <//>`}
    </div>`;
}
