import { html, useEffect, useRef, useState } from "../lib/dom.js";
import { LOCKED, handIn, takeAddressToken } from "../lib/session.js";
import { useText } from "../lib/text.js";

const fromAddress = takeAddressToken(); // before anything else can read or share the address

/** Shows its children once the server lets this browser in; until then asks for the token, if the server does. */
export function TokenGate({ children }) {
  const { language } = useText();
  const [state, setState] = useState(fromAddress === null ? "open" : "handing-in");
  const [refusal, setRefusal] = useState(null);

  useEffect(() => {
    const lock = () => setState("locked");
    addEventListener(LOCKED, lock);
    return () => removeEventListener(LOCKED, lock);
  }, []);
  const enter = async (token) => {
    const answer = await handIn(token, language);
    setRefusal(answer.opened ? null : answer);
    setState(answer.opened ? "open" : "locked");
  };
  useEffect(() => {
    if (fromAddress !== null) enter(fromAddress);
  }, []);

  if (state === "open") return children;
  return state === "locked" && html`<${TokenForm} enter=${enter} refusal=${refusal} />`;
}

function TokenForm({ enter, refusal }) {
  const { t } = useText();
  const [busy, setBusy] = useState(false);
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);

  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    await enter(field.current.value.trim());
    setBusy(false);
    field.current?.select();
  };
  return html`
    <form class="card token-gate" onSubmit=${submit}>
      <h1>${t("token.heading")}</h1>
      <p id="token-about" class="hint">${t("token.about")}</p>
      <label for="token">${t("token.token")}</label>
      <div class="token-row">
        <input id="token" ref=${field} type="password" autocomplete="off" spellcheck=${false} required maxlength="200"
          aria-describedby=${refusal ? "token-refusal" : "token-about"} aria-invalid=${refusal ? "true" : null} />
        <button type="submit" disabled=${busy}>${t("token.enter")}</button>
      </div>
      ${refusal && html`
        <p id="token-refusal" class="wrong" role="alert">
          ${refusal.message ?? t("token.failed")} ${refusal.hint && html`<span class="hint">${refusal.hint}</span>`}
        </p>`}
    </form>`;
}
