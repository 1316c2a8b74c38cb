import { html, useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { Card } from "../components/card.js";
import { Chart } from "../components/chart.js";
import { shareRows, sharesHeight, sharesOption, shareToken } from "../charts/component-share.js";
import { jobNames, usePercent } from "./words.js";

/** What iterations are made of, measured and predicted. @param {{shares: any[]}} given */
export function SharesCard({ shares }) {
  const { t } = useText();
  const { pct, tick } = usePercent();
  const tokens = useTokens();
  const narrow = useMemo(() => matchMedia("(max-width: 700px)").matches, []);
  const { names } = shares[0];
  const rows = useMemo(() => shareRows(shares, jobNames(shares.map((one) => one.job), narrow), { measured: t("compare.kind.measured"), predicted: t("compare.kind.predicted") }), [shares, t, narrow]);
  const option = useMemo(() => sharesOption(rows, names, { percent: pct, tick }, tokens, narrow), [rows, tokens, pct, narrow]);
  const table = useMemo(() => ({
    columns: [t("calibrate.column.name"), t("calibrate.column.cluster"), t("compare.column.kind"), ...Object.values(names)],
    rows: rows.map((row) => [row.name, row.cluster, row.what, ...Object.keys(names).map((part) => row.parts[part] ?? 0)]),
  }), [rows, t]);
  return html`
    <${Card} id="calibrate-shares" title=${t("calibrate.shares.heading")} aside=${t("calibrate.shares.about")}>
      <${Chart} name="component-share" option=${option} table=${table} height=${sharesHeight(rows)} label=${t("calibrate.shares.label")}>
        <ul class="compare-legend">${Object.keys(names).map((part) => html`<li key=${part}><span class="swatch" style=${{ backgroundColor: tokens[shareToken(part)] }}></span>${names[part]}</li>`)}</ul>
      <//>
    <//>`;
}
