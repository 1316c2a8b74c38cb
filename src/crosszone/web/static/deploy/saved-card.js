import { html, useRef } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Card } from "../components/card.js";
import { TableFrame } from "../components/table-frame.js";
import { Refusals } from "../compare/refusals.js";
import { Sure } from "../compare/sure.js";

/**
 * Bundles that were saved: opened again, downloaded, deleted.
 * @param {{bundles: import("./bundles.js").Bundles, choices: any, chosen: string | null, open: (id: string) => void, left: () => void}} given left: the one shown was deleted
 */
export function Saved({ bundles, choices, chosen, open, left }) {
  const { t, amount, language } = useText();
  const heading = useRef(null);
  const called = (kind, name) => choices?.[kind].find((one) => one.name === name)?.title ?? name;
  const when = (row) => new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" }).format(new Date(row.created));
  const remove = async (row) => {
    await bundles.remove([row.id]);
    if (row.id === chosen) left();
    heading.current?.focus();
  };
  const { rows } = bundles;
  return html`
    <${Card} id="deploy-saved" title=${t("deploy.saved_heading")} aside=${t("deploy.saved_about")}>
      <div ref=${heading} tabindex="-1"><${Refusals} notices=${bundles.notices} failed=${bundles.failed} /></div>
      ${rows?.length === 0 && html`<p class="empty">${t("deploy.none_saved")}</p>`}
      ${rows?.length > 0 && html`
        <${TableFrame} label=${t("deploy.saved_heading")}>
          <thead>
            <tr>
              <th scope="col">${t("deploy.column.name")}</th>
              <th scope="col">${t("deploy.column.framework")}</th>
              <th scope="col">${t("deploy.column.launcher")}</th>
              <th scope="col" class="number">${t("deploy.column.nodes")}</th>
              <th scope="col" class="number">${t("deploy.column.ranks")}</th>
              <th scope="col" class="number">${t("deploy.column.size")}</th>
              <th scope="col">${t("deploy.column.saved")}</th>
              <th scope="col"><span class="visually-hidden">${t("deploy.column.actions")}</span></th>
            </tr>
          </thead>
          <tbody>
            ${rows.map((row) => html`
              <tr key=${row.id} data-bundle=${row.id} class=${row.id === chosen ? "chosen" : ""}>
                <th scope="row"><button type="button" class="link" title=${t("deploy.open_title", { name: row.name })} onClick=${() => open(row.id)}>${row.name}</button>
                  ${row.template && html` <span class="deploy-tag">${t("deploy.to_fill")}</span>`}</th>
                <td>${called("frameworks", row.framework)}</td>
                <td>${called("launchers", row.launcher)}</td>
                <td class="number">${amount(row.nodes)}</td>
                <td class="number">${amount(row.world_size)}</td>
                <td class="number">${amount(Math.ceil(row.bytes / 1024))} KiB</td>
                <td><time datetime=${row.created}>${when(row)}</time></td>
                <td class="compare-actions">
                  <a class="button small" href=${`/api/v1/bundles/${row.id}/zip`} download aria-label=${t("deploy.zip_title", { name: row.name })}>${t("deploy.zip_short")}</a>
                  <${Sure} small=${true} label=${t("compare.delete")} title=${t("deploy.delete_title", { name: row.name })} question=${t("deploy.delete_sure", { name: row.name })} act=${() => remove(row)} />
                </td>
              </tr>`)}
          </tbody>
        <//>`}
      ${bundles.more && html`<div class="bar"><button type="button" onClick=${bundles.older}>${t("compare.older")}</button></div>`}
    <//>`;
}
