import { html, useMemo, useState } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { usePart } from "../lib/requests.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Facts } from "../components/facts.js";
import { RankGrid as Grid } from "../charts/rank-grid.js";
import { zoneColour } from "../charts/zone-colours.js";

/** Every rank of the way shown, once: its coordinates, zone, node, GPU and layers. */
export function RankGrid() {
  const { t, language, amount } = useText();
  const tokens = useTokens();
  const { body } = useAnswers();
  const asked = usePart("ranks", body, language);
  const [chosen, setChosen] = useState(null);
  const [pointed, setPointed] = useState(null);
  const ranks = asked.answer;
  const table = useMemo(() => ranks && tableOf(ranks, t), [ranks, t]);
  if (!ranks) return html`<${Card} id="ranks" title=${t("ranks.heading")}><p class="empty">${t("ranks.empty")}</p><//>`;
  const shown = chosen !== null && chosen < ranks.shown ? chosen : null;
  const told = pointed !== null && pointed < ranks.shown ? pointed : shown;
  const typed = (event) => setChosen(Number.isInteger(event.target.valueAsNumber) ? Math.max(0, Math.min(ranks.shown - 1, event.target.valueAsNumber)) : null);
  return html`
    <${Card} id="ranks" title=${t("ranks.heading")} aside=${t("ranks.about", { ranks: amount(ranks.ranks), gpus: amount(ranks.gpus) })}>
      <div class="rank-bar">
        <ul class="rank-zones">
          ${ranks.zones.map((zone, at) => html`
            <li key=${at}><span class="swatch" style=${{ background: zoneColour(tokens, at) }}></span>${t("ranks.used", { zone: zone.name, used: amount(zone.used), gpus: amount(zone.gpus) })}</li>`)}
        </ul>
        <label class="rank-find">${t("ranks.find")} <input type="number" min="0" max=${ranks.shown - 1} value=${shown ?? ""} onInput=${typed} /></label>
      </div>
      <div class="rank-facts" aria-live="polite">
        ${told === null ? html`<p class="hint">${t("ranks.hint")}</p>` : html`<${Facts} facts=${[[t("ranks.rank"), amount(told)], ...factsOf(ranks, told, t)]} />`}
      </div>
      <${Grid} ranks=${ranks} chosen=${shown} choose=${setChosen} point=${setPointed} table=${table} />
      ${ranks.shown < ranks.ranks && html`<p class="hint rank-note">${t("ranks.shown", { shown: amount(ranks.shown), ranks: amount(ranks.ranks) })}</p>`}
      ${ranks.idle.length > 0 && html`
        <div class="rank-note"><h3>${t("ranks.idle")}</h3><ul>${ranks.idle.map((one) => html`<li>${one.reason.message}</li>`)}</ul></div>`}
    <//>`;
}

/** What is known of one rank: [[name, value], ...]. */
function factsOf({ columns, zones, groups, stages }, rank, t) {
  const group = groups[columns.group[rank]];
  const runs = stages[columns.pp[rank]].runs.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`));
  return [
    [t("ranks.coordinates"), t("ranks.place", Object.fromEntries(["tp", "pp", "dp", "cp"].map((axis) => [axis, columns[axis][rank]])))],
    [t("ranks.zone"), zones[columns.zone[rank]].name],
    [t("ranks.node"), `${group.group}.${columns.node[rank]}`],
    [t("ranks.gpu"), `${columns.gpu[rank]} (${group.gpu})`],
    [t("ranks.layers"), runs.join(", ")],
  ];
}

function tableOf({ columns, zones, groups }, t) {
  const axes = ["tp", "pp", "dp", "cp"];
  const rows = columns.rank.map((rank) => [
    rank, ...axes.map((axis) => columns[axis][rank]), zones[columns.zone[rank]].name, `${groups[columns.group[rank]].group}.${columns.node[rank]}`, columns.gpu[rank], groups[columns.group[rank]].gpu,
  ]);
  return { columns: [t("ranks.rank"), ...axes, t("ranks.zone"), t("ranks.node"), t("ranks.gpu"), "GPU"], rows };
}
