import { html } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { useTokens } from "../lib/tokens.js";
import { KIND_TOKENS } from "../charts/gantt-rows.js";

/** Kinds with their colours; a click hides or shows one. @param {{kinds: string[], hidden: Set<string>, setHidden: (hidden: Set<string>) => void}} given */
export function Legend({ kinds, hidden, setHidden }) {
  const { t } = useText();
  const tokens = useTokens();
  const toggle = (kind) => setHidden(new Set(hidden.has(kind) ? [...hidden].filter((one) => one !== kind) : [...hidden, kind]));
  return html`
    <ul class="timeline-legend" aria-label=${t("timeline.legend")}>
      ${kinds.map((kind) => html`
        <li key=${kind}>
          <button type="button" class="quiet small" aria-pressed=${!hidden.has(kind)} onClick=${() => toggle(kind)}>
            <span class="swatch" style=${{ background: tokens[KIND_TOKENS[kind]] }}></span>${t(`timeline.kind.${kind}`)}
          </button>
        </li>`)}
    </ul>`;
}
