import { html, useState } from "../lib/dom.js";
import { withField } from "../lib/fields.js";
import { useScenario } from "../lib/scenario.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { groupsOf, zonesOf } from "../scenario/zone-edits.js";
import { HostTable } from "./host-table.js";
import { hostsWritten, keyOf, rowsOf, wrongHosts } from "./hosts.js";

/**
 * Address and interface of every node, typed here and written into the scenario; its comments stay.
 * @param {{notices: import("../lib/api.js").Notice[], needed: boolean}} given needed: the launcher cannot find the nodes by itself
 */
export function Hosts({ notices, needed }) {
  const { t, amount } = useText();
  const scenario = useScenario();
  const [typed, setTyped] = useState({});
  const groups = zonesOf(scenario.fields).flatMap((zone, at) =>
    groupsOf(zone).map((group, number) => {
      const path = ["cluster", "zones", at, "nodes", number];
      const key = keyOf(path, group);
      return { path, key, zone: String(zone?.name ?? ""), number, group, of: groupsOf(zone).length, rows: typed[key] ?? rowsOf(group) };
    }),
  );
  if (!groups.length) return null;
  const wrong = wrongHosts([...notices, ...scenario.notices], zonesOf(scenario.fields));
  const all = groups.flatMap((one) => one.rows);
  const known = all.filter((row) => row.address.trim()).length;
  const changed = groups.filter((one) => typed[one.key]);
  const halves = changed.filter((one) => one.rows.some((row) => row.address.trim()) && one.rows.some((row) => !row.address.trim()));
  const write = () => {
    const next = changed.reduce((fields, one) => withField(fields, [...one.path, "hosts"], hostsWritten(one.rows, one.group)), scenario.fields);
    scenario.setFields(next, "hosts");
    setTyped({});
  };
  return html`
    <div data-hosts>
      <${Card} id="deploy-hosts" title=${t("deploy.hosts.heading")} aside=${t("deploy.hosts.known", { known: amount(known), count: amount(all.length) })}>
        <p class="note-line">${t("deploy.hosts.about")}</p>
        ${groups.map((one) => html`
          <${Group} key=${one.path.join()} one=${one} wrong=${wrong.get(one.path.join()) ?? new Map()} open=${needed && one.rows.some((row) => !row.address.trim())}
            set=${(rows) => setTyped({ ...typed, [one.key]: rows })} />`)}
        ${changed.length > 0 && html`
          <div class="card-bar">
            <button type="button" class="primary" disabled=${halves.length > 0} onClick=${write}>${t("deploy.hosts.write")}</button>
            <button type="button" class="quiet" onClick=${() => setTyped({})}>${t("deploy.hosts.drop")}</button>
            <span class="quiet-text" role="status">${halves.length > 0 && t("deploy.hosts.half", { zone: halves[0].zone, count: halves[0].rows.filter((row) => !row.address.trim()).length })}</span>
          </div>`}
      <//>
    </div>`;
}

function Group({ one, wrong, open, set }) {
  const { t, amount } = useText();
  const name = one.of > 1 ? t("deploy.hosts.group", { zone: one.zone, number: one.number + 1 }) : one.zone;
  const known = one.rows.filter((row) => row.address.trim()).length;
  const [shown, setShown] = useState(null);
  return html`
    <details class="deploy-group" open=${(shown ?? open) || wrong.size > 0} onToggle=${(event) => event.target.open !== (shown ?? open) && setShown(event.target.open)}>
      <summary>${name} <span class="quiet-text">${t("deploy.hosts.known", { known: amount(known), count: amount(one.rows.length) })}</span></summary>
      <${HostTable} name=${name} rows=${one.rows} wrong=${wrong} set=${set} />
    </details>`;
}
