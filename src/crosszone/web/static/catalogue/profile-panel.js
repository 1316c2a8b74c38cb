import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { fetchJson, segment } from "../lib/api.js";
import { useText } from "../lib/text.js";
import { Facts } from "../components/facts.js";
import { TableFrame } from "../components/table-frame.js";

/** A profile: what it rests on, and each coefficient with unit, error and origin. @param {{name: string, close: () => void}} given */
export function ProfilePanel({ name, close }) {
  const { t, language } = useText();
  const [profile, setProfile] = useState(null);
  const [lost, setLost] = useState(null);
  const heading = useRef(null);
  useEffect(() => {
    fetchJson(`profiles/${segment(name)}`, language).then(setProfile, setLost);
  }, [name]);
  useEffect(() => heading.current?.focus(), []);
  return html`
    <aside class="pane entry" aria-labelledby="entry-heading" onKeyDown=${(event) => event.key === "Escape" && close()}>
      <div class="entry-head">
        <h2 id="entry-heading" ref=${heading} tabindex="-1">${name}</h2>
        <button type="button" class="quiet" onClick=${close}>${t("close")}</button>
      </div>
      ${lost && html`<p class="text-error" role="alert">${lost.notices[0]?.message ?? t("failed")}</p>`}
      ${profile && html`
        <${Facts} facts=${factsOf(profile, t)} />
        <p class="quiet-text">${profile.source}</p>
        <${Coefficients} figures=${profile.figures} about="time" />
        <${Coefficients} figures=${profile.figures} about="memory" />
        ${!profile.figures.length && html`<p class="empty">${t("catalogue.no_coefficients")}</p>`}`}
    </aside>`;
}

function factsOf(profile, t) {
  const settings = Object.entries(profile.settings).map(([key, value]) => `${key}: ${value}`);
  return [
    [t("column.profile_of"), t(`catalogue.profile_kind.${profile.kind}`)],
    [t("column.title"), profile.title],
    [t("column.measured"), profile.measured ? t("yes") : t("catalogue.no")],
    [t("column.framework"), profile.framework],
    [t("catalogue.default_of"), profile.default_of.join(", ")],
    [t("catalogue.gpus"), profile.gpus.join(", ")],
    [t("catalogue.like"), profile.like],
    [t("catalogue.settings"), settings.join(", ")],
  ].filter(([, value]) => value);
}

function Coefficients({ figures, about }) {
  const { t, amount } = useText();
  const rows = figures.filter((figure) => figure.about === about);
  if (!rows.length) return null;
  return html`
    <h3>${t(`catalogue.coefficients.${about}`)}</h3>
    <${TableFrame} label=${t(`catalogue.coefficients.${about}`)}>
      <thead><tr>
        <th scope="col">${t("column.coefficient")}</th><th scope="col" class="number">${t("column.value")}</th><th scope="col">${t("column.origin")}</th>
      </tr></thead>
      <tbody>
        ${rows.map(
          ({ name, value, unit, error_pct, origin, source }) => html`
            <tr key=${name}>
              <th scope="row"><code>${name}</code><span class="below">${t(`coefficient.${name}`)}</span></th>
              <td class="number">${amount(value)} <span class="unit">${t(`unit.${unit.replace("/", "_per_")}`)}</span>
                ${error_pct !== null && html`<span class="below">${t("catalogue.error", { error: amount(error_pct) })}</span>`}</td>
              <td class="value"><span class="origin">${t(`rate_origin.${origin}`)}</span>${source && html`<span class="below">${source}</span>`}</td>
            </tr>`,
        )}
      </tbody>
    <//>`;
}
