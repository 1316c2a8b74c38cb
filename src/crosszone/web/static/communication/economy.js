import { html } from "../lib/dom.js";
import { usePart } from "../lib/requests.js";
import { useText } from "../lib/text.js";
import { Bill } from "./bill.js";
import { Refused } from "./long.js";
import { Rating } from "./rating.js";

/** What the way shown costs, and how sure its figures are. */
export function Economy({ body }) {
  const { language } = useText();
  const bill = usePart("bill", body, language);
  const rating = usePart("rating", body, language);
  const refused = bill.notices.length || bill.failed ? bill : rating; // mostly for the same reason: told once
  return html`
    <${Refused} notices=${refused.notices} failed=${refused.failed} />
    ${bill.answer && html`<${Bill} bill=${bill.answer} />`}
    ${rating.answer && html`<${Rating} rating=${rating.answer} />`}`;
}
