// Axes of a heat map: which fields there are to vary, and an axis as the API and the address write it.

/**
 * @typedef {{field: string, low: string, high: string, scale: "log" | "lin", count: string}} Axis as typed
 * @typedef {{field: string, name: string, link: string | null, low: number, high: number, scale: "log" | "lin"}} Field
 */

export const MOST = 24;
const RANGE = /^(?<field>[^=]+)=(?<low>[^:,]+):(?<high>[^:,]+):(?<scale>log|lin)?(?<count>\d{1,3})$/;
const RATE = { name: "gbps", low: 1, high: 100, scale: "log" };
const TRIP = { name: "rtt_ms", low: 2, high: 100, scale: "log" };

/** Fields of a scenario that can be varied, with the range to begin with. @param {any} description @returns {Field[]} */
export function fieldsOf(description) {
  const { cluster, job } = description;
  const on = (link, one) => ({ ...one, link, field: `cluster.links[${link ?? "*"}].${one.name}` });
  const links = cluster.links.length > 1 ? cluster.links : [];
  const crossing = cluster.zones.length > 1
    ? [
      on(null, RATE), on(null, TRIP), on(null, { name: "loss_pct", low: 0.001, high: 1, scale: "log" }),
      { name: "uplink_gbps", link: null, field: "cluster.zones[*].uplink_gbps", low: 1, high: 100, scale: "log" },
      ...links.slice(0, 30).flatMap(({ between }) => [on(between.join(","), RATE), on(between.join(","), TRIP)]),
    ]
    : [];
  const batch = job.global_batch;
  return /** @type {Field[]} */ ([
    ...crossing,
    { name: "global_batch", link: null, field: "job.global_batch", low: Math.max(1, Math.round(batch / 4)), high: batch * 4, scale: "log" },
    { name: "seq_len", link: null, field: "job.seq_len", low: 2048, high: 32768, scale: "log" },
    { name: "local_steps", link: null, field: "strategy.local_update.steps", low: 10, high: 500, scale: "log" },
  ]);
}

/** The axes a scenario begins with: rate by round-trip time, or batch by length where nothing crosses. @param {Field[]} fields @returns {[Axis, Axis]} */
export function usualAxes(fields) {
  const [x, y] = fields;
  return [axisOf(x, 10), axisOf(y, 8)];
}

/** @param {Field} field @param {number} count @returns {Axis} */
export const axisOf = ({ field, low, high, scale }, count) => ({ field, low: String(low), high: String(high), scale, count: String(count) });

/** An axis of an address, null where it is none. @param {string | null} text @returns {Axis | null} */
export function readAxis(text) {
  const found = RANGE.exec(text ?? "")?.groups;
  return found ? { field: found.field, low: found.low, high: found.high, scale: found.scale === "log" ? "log" : "lin", count: found.count } : null;
}

/** @param {Axis} axis */
export const axisText = ({ field, low, high, scale, count }) => `${field}=${Number(low)}:${Number(high)}:${scale === "log" ? "log" : ""}${Number(count)}`;

/** What is wrong with an axis: the key of its sentence; null: nothing. @param {Axis} axis */
export function wrongOf({ low, high, scale, count }) {
  const [least, most, steps] = [low, high, count].map((text) => (text.trim() === "" ? NaN : Number(text)));
  if (!Number.isFinite(least) || !Number.isFinite(most) || least >= most) return "range";
  if (scale === "log" && least <= 0) return "log";
  return Number.isInteger(steps) && steps >= 2 && steps <= MOST ? null : "count";
}

/** The value a field has now; null: links differ, or it is not given. @param {string} field @param {any} description @param {any} fields */
export function presentOf(field, description, fields) {
  const { cluster, job } = description;
  const link = /^cluster\.links\[(.+)\]\.(gbps|rtt_ms|loss_pct)$/.exec(field);
  if (link) {
    const wanted = link[1] === "*" ? cluster.links : cluster.links.filter(({ between }) => between.join(",") === link[1]);
    const values = new Set(wanted.map((one) => (link[2] === "rtt_ms" ? one.rtt_ms.expected : one[link[2]])));
    return values.size === 1 ? [...values][0] : null;
  }
  if (field === "cluster.zones[*].uplink_gbps") {
    const values = new Set(cluster.zones.map((zone) => zone.uplink_gbps));
    return values.size === 1 ? [...values][0] : null;
  }
  if (field === "strategy.local_update.steps") return fields?.strategy?.local_update?.steps ?? null;
  return field.startsWith("job.") ? (job[field.slice(4)] ?? null) : null;
}
