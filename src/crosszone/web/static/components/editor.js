import { html, useLayoutEffect, useMemo, useRef } from "../lib/dom.js";
import { pieces } from "../lib/yaml.js";
import { useText } from "../lib/text.js";

const MOST_COLOURED_LINES = 2000;

/** Text with line numbers, colours and marked lines: a plain textarea lies over its coloured copy. */
export function Editor({ handle, text, onEdit, marks }) {
  const { t } = useText();
  const field = useRef(null);
  const frame = useRef(null);
  const lines = useMemo(() => text.split("\n"), [text]);
  const coloured = lines.length <= MOST_COLOURED_LINES;

  useLayoutEffect(() => {
    handle.current = { jump: (line) => jumpTo(line, field.current, frame.current) };
  });

  return html`
    <div class="editor" ref=${frame}>
      <div class="gutter" aria-hidden="true">
        ${coloured
          ? lines.map((_, index) => html`<span key=${index} class=${marks.get(index + 1) ?? null}>${index + 1}</span>`)
          : html`<pre>${lines.map((_, index) => index + 1).join("\n")}</pre>`}
      </div>
      <div class="sheet">
        <pre aria-hidden="true">${coloured
          ? lines.map((line, index) => html`<${Line} key=${index} line=${line} mark=${marks.get(index + 1)} />`)
          : text + "\n"}</pre>
        <textarea ref=${field} value=${text} onInput=${(event) => onEdit(event.target.value)}
          aria-label=${t("source.label")} aria-describedby="text-errors" spellcheck=${false} autocomplete="off"
          autocapitalize="off" wrap="off"></textarea>
      </div>
    </div>`;
}

function Line({ line, mark }) {
  return useMemo(
    () => html`<span class=${`line ${mark ?? ""}`}>${pieces(line).map(([kind, part]) => (kind ? html`<span class=${`token-${kind}`}>${part}</span>` : part))}${"\n"}</span>`,
    [line, mark],
  );
}

/** Select a line and bring it into view. */
function jumpTo(line, field, frame) {
  const lines = field.value.split("\n");
  const row = Math.min(line, lines.length) - 1;
  const start = lines.slice(0, row).reduce((length, before) => length + before.length + 1, 0);
  field.focus({ preventScroll: true });
  field.setSelectionRange(start, start + lines[row].length);
  const height = parseFloat(getComputedStyle(frame).lineHeight);
  frame.scrollTo({ top: Math.max(0, row * height - frame.clientHeight / 2), left: 0 });
  frame.scrollIntoView({ block: "nearest" });
}
