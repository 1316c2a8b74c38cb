// What belongs to a component but stands outside the rest of the page, so that neither its styles nor its rows reach it.
import { html, render, useLayoutEffect, useRef } from "./dom.js";
import { AnswersContext, useAnswers } from "./answers.js";
import { TextContext, useText } from "./text.js";

/** Children at the end of the page, with the texts and answers of where they are written. @param {{children: any}} given */
export function Outside({ children }) {
  const texts = useText();
  const answers = useAnswers();
  const host = useRef(null);
  useLayoutEffect(() => {
    host.current = document.createElement("div");
    document.body.append(host.current);
    return () => {
      render(null, host.current);
      host.current.remove();
    };
  }, []);
  useLayoutEffect(() => {
    render(html`<${TextContext.Provider} value=${texts}><${AnswersContext.Provider} value=${answers}>${children}<//><//>`, host.current);
  });
  return null;
}
