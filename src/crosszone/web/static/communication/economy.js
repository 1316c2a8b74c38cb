import { html } from "../lib/dom.js";
import { postJson } from "../lib/api.js";
import { useAsked } from "../lib/asked.js";
import { useText } from "../lib/text.js";
import { Bill } from "./bill.js";
import { Refused } from "./long.js";
import { Rating } from "./rating.js";

const PAUSE_MS = 200;

/** What the way shown costs, and how sure its figures are. */
export function Economy({ body }) {
  const { language } = useText();
  const asked = useAsked(body, (sent, signal) => postJson("analyse", { ...sent, parts: ["bill", "rating"] }, language, signal), { pause: PAUSE_MS, also: [language] });
  const found = asked.answer;
  return html`
    <${Refused} notices=${asked.notices} failed=${asked.failed} />
    ${found && html`<${Bill} bill=${found.bill} /><${Rating} rating=${found.rating} />`}`;
}
