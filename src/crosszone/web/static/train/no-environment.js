import { html } from "../lib/dom.js";
import { postJson } from "../lib/api.js";
import { useText } from "../lib/text.js";
import { useWork } from "../lib/work.js";

const HERE = { id: "this-machine", name: "this-machine", type: "local", zone: "here", runner: "local", address: "127.0.0.1", status: "running" };

/** What to do first: the machine of the server is added by one click, and asked what it is. @param {{environments: import("./entries.js").Entries, asking: import("./request.js").Asking, add: () => void}} given */
export function NoEnvironment({ environments, asking, add }) {
  const { t, language } = useText();
  const { busy, said, during } = useWork();
  const here = () =>
    during(async () => {
      const made = await environments.save(null, HERE);
      try {
        await postJson(`environments/${made.id}/probe`, {}, language);
      } finally {
        await environments.reload();
        asking.select([made.id]);
      }
    });
  return html`
    <div class="train-first">
      <p>${t("train.none")}</p>
      <div class="train-ways">
        <button type="button" class="primary" disabled=${busy} onClick=${here}>${t(busy ? "train.probing" : "train.add_here")}</button>
        <button type="button" onClick=${add}>${t("train.add_environment")}</button>
      </div>
      <p class=${`said ${said?.wrong ? "wrong" : ""}`} role="status">${said?.words}</p>
    </div>`;
}
