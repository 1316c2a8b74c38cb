import { html, useMemo } from "../lib/dom.js";
import { useText } from "../lib/text.js";
import { Field } from "./field.js";
import { useForm } from "./form.js";
import { Slider, decades } from "./slider.js";
import { linkIndex, withLinkFigure } from "./zone-edits.js";

const BACK = { gbps: "gbps_back", gbps_back: "gbps", usd_per_gb: "usd_per_gb_back", usd_per_gb_back: "usd_per_gb" };
const MORE = ["jitter_ms", "loss_pct", "flow_gbps", "usd_per_gb", "usd_per_gb_back", "km"];

/** The figures of one pair of zones; a figure that is emptied is derived again. @param {{pair: [string, string], link: any, close: () => void}} given */
export function LinkEditor({ pair, link, close }) {
  const { t, label, amount } = useText();
  const { fields, setAll } = useForm();
  const rates = useMemo(() => decades(0.1, 1000), []);
  const delays = useMemo(() => decades(0.1, 500), []);
  const at = linkIndex(fields, pair);
  const listed = at < 0 ? null : fields.cluster.links[at];
  const turned = listed !== null && listed.between[0] === pair[1];
  const path = (key) => ["cluster", "links", at < 0 ? (fields.cluster.links?.length ?? 0) : at, key];
  const set = (key) => (value) => setAll(withLinkFigure(fields, pair, key, value), `link ${pair.join(" ")} ${key}`);
  const there = (key) => (turned && key in BACK ? BACK[key] : key); // the listed link may run the other way
  const derived = (key) => (key === "rtt_ms" ? link?.rtt_ms.expected : link?.[there(key)]);
  const shown = (key) => (typeof derived(key) === "number" ? amount(Number(derived(key).toPrecision(3))) : "");
  const hint = (key) => {
    const origin = link?.origins[there(key)];
    if (!origin) return null;
    const text = label(`origin_${origin}`);
    return listed?.[key] === undefined ? text : html`${text} · <button type="button" class="link swap" onClick=${() => set(key)(undefined)}>${t("form.derive")}</button>`;
  };
  const ends = turned ? [pair[1], pair[0]] : pair;
  const field = (key, more = {}) => html`
    <${Field} key=${key} owner="Link" path=${path(key)} onSet=${set(key)} placeholder=${shown(key)} hint=${hint(key)} ...${more} />`;
  const slider = (key, stops, unit) => html`
    <${Slider} stops=${stops} value=${listed?.[key] ?? derived(key)} set=${set(key)} name=${key} label=${t(`field.Link.${key}`)}
      write=${(value) => `${amount(value)} ${unit}`} />`;
  return html`
    <fieldset class="link-editor">
      <legend>${pair[0]} – ${pair[1]}</legend>
      <button type="button" class="link remove" onClick=${close}>${t("close")}</button>
      <div class="fields">
        ${field("gbps", { wide: true, children: slider("gbps", rates, "Gbit/s") })}
        ${field("rtt_ms", { wide: true, children: slider("rtt_ms", delays, "ms") })}
        ${field("gbps_back", { label: t("form.gbps_back", { from: ends[1], to: ends[0] }), wide: true })}
        ${MORE.map((key) => field(key))}
        ${field("measured")}
      </div>
    </fieldset>`;
}
