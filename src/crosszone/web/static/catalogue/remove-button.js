import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { deleteJson, segment } from "../lib/api.js";
import { useText } from "../lib/text.js";

/** Removes an own entry, after asking. @param {{kind: string, name: string, removed: () => void}} given */
export function RemoveButton({ kind, name, removed }) {
  const { t, language } = useText();
  const [asking, setAsking] = useState(false);
  const [lost, setLost] = useState(null);
  const button = useRef(null);
  const keep = useRef(null);
  useEffect(() => {
    if (asking) keep.current?.focus();
  }, [asking]);
  const stay = () => {
    setAsking(false);
    setTimeout(() => button.current?.focus());
  };
  const remove = () => deleteJson(`catalogue/${kind}/${segment(name)}`, language).then(removed, setLost);
  if (!asking) return html`<button type="button" class="danger" ref=${button} onClick=${() => setAsking(true)}>${t("catalogue.remove")}</button>`;
  return html`
    <div class="asks" role="alertdialog" aria-label=${t("catalogue.remove_asks", { name })}
      onKeyDown=${(event) => event.key === "Escape" && (event.stopPropagation(), stay())}>
      <p>${t("catalogue.remove_asks", { name })}</p>
      <button type="button" ref=${keep} onClick=${stay}>${t("catalogue.keep")}</button>
      <button type="button" class="danger" onClick=${remove}>${t("catalogue.remove_now")}</button>
      ${lost && html`<p class="wrong" role="alert">${lost.notices[0]?.message ?? t("failed")}</p>`}
    </div>`;
}
