// What lanes of timelines are called: those of imported runs in the language of the page, all of them short where there is little room.

/** Lanes that readers of files name in English. */
const IMPORTED = { "stage-last": "last", earlier: "earlier", "stages-before": "earlier" };
const NUMBERED = /^(stage|replicas)-(\d+)$/;
const ALONE = ["host", "replicas"];

/**
 * @param {{id: string, name: string}} lane @param {(key: string, parameters?: any) => string} t
 * @param {boolean} [narrow] there is room for a few letters only
 */
export function laneName(lane, t, narrow = false) {
  if (lane.id in IMPORTED) return t(`timeline.lane.${IMPORTED[lane.id]}${narrow ? "_short" : ""}`);
  if (ALONE.includes(lane.id) && (narrow || lane.name === lane.id)) return t(`timeline.lane.${lane.id}_short`);
  if (!narrow) return lane.name;
  const [, what, number] = NUMBERED.exec(lane.id) ?? [];
  return what ? t(`timeline.lane.${what}_number`, { number }) : lane.id;
}

/**
 * Names cut in the middle, where two that begin alike still differ.
 * @param {string} name @param {number} most letters of it
 */
export function cut(name, most) {
  if (name.length <= most) return name;
  const end = Math.floor((most - 1) / 2);
  return `${name.slice(0, most - 1 - end).trimEnd()}…${name.slice(-end).trimStart()}`;
}
