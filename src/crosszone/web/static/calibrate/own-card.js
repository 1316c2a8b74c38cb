import { html, useRef, useState } from "../lib/dom.js";
import { segment } from "../lib/api.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { TableFrame } from "../components/table-frame.js";
import { Refusals } from "../compare/refusals.js";
import { Sure } from "../compare/sure.js";
import { Scores } from "./scores.js";
import { usePercent, useWhen } from "./words.js";

/** Own profiles: which one is in use, how good each is, and what can be done with it. @param {{own: import("./own.js").Own, learn: () => void}} given */
export function OwnCard({ own, learn }) {
  const { t } = useText();
  const heading = useRef(null);
  const { list } = own;
  const remove = async (name) => {
    await own.remove(name);
    heading.current?.focus();
  };
  return html`
    <${Card} id="calibrate-own" title=${t("calibrate.own.heading")} aside=${t("calibrate.own.about")}>
      <div ref=${heading} tabindex="-1" class="calibrate-said" aria-busy=${!list && !own.failed && !own.notices.length}>
        <${Refusals} notices=${[...own.notices, ...(list?.notices ?? [])]} failed=${own.failed} />
      </div>
      ${list?.own.length === 0 && html`
        <p class="empty">${t("calibrate.own.empty")}</p>
        <div class="bar"><button type="button" onClick=${learn}>${t("calibrate.own.learn")}</button><${Bring} own=${own} /></div>`}
      ${list?.own.length > 0 && html`
        <${TableFrame} label=${t("calibrate.own.heading")}>
          <thead>
            <tr>
              <th scope="col">${t("calibrate.column.name")}</th>
              <th scope="col">${t("calibrate.column.for")}</th>
              <th scope="col" class="number">${t("calibrate.column.values")}</th>
              <th scope="col" class="number">${t("calibrate.column.error")}</th>
              <th scope="col">${t("calibrate.column.source")}</th>
              <th scope="col"><span class="visually-hidden">${t("calibrate.column.actions")}</span></th>
            </tr>
          </thead>
          <tbody>${list.own.map((row) => html`<${Row} key=${row.name} row=${row} own=${own} remove=${() => remove(row.name)} />`)}</tbody>
        <//>
        <div class="bar">
          <${Bring} own=${own} />
          ${list.default && html`<button type="button" onClick=${() => own.use(null)}>${t("calibrate.own.use_none")}</button>`}
        </div>`}
    <//>`;
}

function Row({ row, own, remove }) {
  const { t, amount, language } = useText();
  const { pct } = usePercent();
  const when = useWhen();
  const [open, setOpen] = useState(false);
  const origins = Object.entries(row.origins).map(([origin, count]) => `${amount(count)} ${t(`rate_origin.${origin}`)}`).join(", ");
  const told = row.notes.length > 0 || Object.keys(row.scores).length > 0;
  return html`
    <tr data-profile=${row.name} class=${row.default ? "chosen" : ""}>
      <th scope="row">
        ${row.name}${row.default && html` <span class="calibrate-tag">${t("calibrate.own.default")}</span>`}
        <span class="below"><time datetime=${row.created}>${when(row.created)}</time></span>
        <${Refusals} notices=${row.notices} />
      </th>
      <td>${[...row.gpus, ...row.stacks].join(", ") || "-"}</td>
      <td class="number">${amount(row.coefficients)}<span class="below">${origins}</span>
        ${row.collectives > 0 && html`<span class="below">${t("calibrate.own.collectives", { count: amount(row.collectives) })}</span>`}</td>
      <td class="number">${row.error_pct === null ? "-" : `±${pct(row.error_pct)}`}</td>
      <td class="calibrate-source">${row.source}
        ${told && html`<button type="button" class="link below" aria-expanded=${String(open)} onClick=${() => setOpen(!open)}>${t(open ? "calibrate.own.less" : "calibrate.own.more")}</button>`}
      </td>
      <td class="compare-actions">
        ${!row.default && !row.notices.length && html`<button type="button" class="small" aria-label=${t("calibrate.own.use_title", { name: row.name })} onClick=${() => own.use(row.name)}>${t("calibrate.own.use")}</button>`}
        ${!row.notices.length && html`<a class="button small" href=${`/api/v1/calibrate/profiles/${segment(row.name)}/yaml?lang=${language}`} download aria-label=${t("calibrate.own.download_title", { name: row.name })}>YAML</a>`}
        <${Sure} small=${true} label=${t("compare.delete")} title=${t("calibrate.own.delete_title", { name: row.name })} question=${t("compare.delete_sure", { name: row.name })} act=${remove} />
      </td>
    </tr>
    ${open && html`
      <tr class="calibrate-told"><td colspan="6">
        ${row.notes.length > 0 && html`<ul class="plain">${row.notes.map((note) => html`<li key=${note}>${note}</li>`)}</ul>`}
        <${Scores} scores=${row.scores} />
      </td></tr>`}`;
}

/** A profile from a file. */
function Bring({ own }) {
  const { t } = useText();
  const [notices, setNotices] = useState([]);
  const picked = async (event) => {
    const field = event.target;
    const [file] = field.files;
    if (!file) return;
    await own.save({ text: await file.text() }).then(() => setNotices([]), (error) => setNotices(error.notices?.length ? error.notices : [{ level: "error", message: t("failed"), hint: "" }]));
    field.value = "";
  };
  return html`
    <label class="button calibrate-file">
      <input type="file" class="visually-hidden" accept=".yaml,.yml,application/yaml" onChange=${picked} />
      <span>${t("calibrate.own.bring")}</span>
    </label>
    <${Refusals} notices=${notices} />`;
}
