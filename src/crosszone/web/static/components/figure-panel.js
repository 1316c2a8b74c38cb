import { html, useEffect, useMemo, useRef, useState } from "../lib/dom.js";
import { useAnswers } from "../lib/answers.js";
import { usePart } from "../lib/requests.js";
import { useText } from "../lib/text.js";
import { Explanation } from "./explanation.js";

/**
 * The panel of an opened figure: goes on to what the figure follows from, and back. Escape and a click beside it close it.
 * @param {{path: string, close: () => void}} given
 */
export function FigurePanel({ path, close }) {
  const { t, language } = useText();
  const { body } = useAnswers();
  const [trail, setTrail] = useState([path]);
  const dialog = useRef(null);
  const heading = useRef(null);
  const figure = trail[trail.length - 1];
  const question = useMemo(() => body && { ...body, options: { figure } }, [body, figure]);
  const { answer, asked, notices, failed } = usePart("explain", question, language);
  const found = answer?.figure === figure || asked === question ? answer : null;

  useEffect(() => {
    dialog.current.showModal();
    heading.current.focus();
    return () => dialog.current?.close();
  }, []);
  useEffect(() => dialog.current.querySelector(".panel-body")?.scrollTo(0, 0), [found?.figure]);

  const open = (next) => {
    setTrail((known) => (known.includes(next) ? known.slice(0, known.indexOf(next) + 1) : [...known, next]));
    heading.current.focus();
  };
  const beside = (event) => event.target === dialog.current && close();
  return html`
    <dialog class="figure-panel" ref=${dialog} aria-labelledby="figure-heading" onClose=${close} onMouseDown=${beside}>
      <div class="panel-head">
        <h2 id="figure-heading" ref=${heading} tabindex="-1">${found?.label ?? t("explain.waiting")}</h2>
        ${trail.length > 1 && html`<button type="button" onClick=${() => setTrail(trail.slice(0, -1))}>${t("explain.back")}</button>`}
        <button type="button" class="quiet" onClick=${close}>${t("close")}</button>
      </div>
      <div class="panel-body" aria-busy=${String(!found && !notices.length && !failed)}>
        ${notices.map((notice) => html`<p class="text-error" role="alert">${notice.message} ${notice.hint}</p>`)}
        ${failed && html`<p class="text-error" role="alert">${t("failed")}</p>`}
        ${found && html`<${Explanation} found=${found} open=${open} />`}
      </div>
    </dialog>`;
}
