import { html, useEffect, useState } from "../lib/dom.js";
import { fetchJson } from "../lib/api.js";
import { markdown } from "../lib/markdown.js";
import { useText } from "../lib/text.js";

/**
 * A formula of the documentation: id, title and text; ids in the text open theirs in its place.
 * @param {{id: string, title: string, text: string}} given
 */
export function Formula({ id, title, text }) {
  const { t, language } = useText();
  const [gone, setGone] = useState([]);
  const [shown, setShown] = useState({ id, title, markdown: text });
  useEffect(() => {
    setGone([]);
    setShown({ id, title, markdown: text });
  }, [id, text]);
  const open = (next) =>
    fetchJson(`formulas/${next}`, language).then(
      (found) => {
        setGone([...gone, shown]);
        setShown(found);
      },
      () => {},
    );
  const back = () => {
    setShown(gone[gone.length - 1]);
    setGone(gone.slice(0, -1));
  };
  const link = (next) => html`<button type="button" class="link formula-id" onClick=${() => open(next)}>[${next}]</button>`;
  return html`
    <section class="formula" data-formula=${shown.id} lang="en">
      <h4><span class="formula-number">[${shown.id}]</span> ${shown.title}
        ${gone.length > 0 && html`<button type="button" class="link" lang=${language} onClick=${back}>${t("explain.formula_back", { id: gone[gone.length - 1].id })}</button>`}
      </h4>
      ${markdown(shown.markdown, link)}
    </section>`;
}
