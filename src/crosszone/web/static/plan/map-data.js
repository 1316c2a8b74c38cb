// The links of a cluster with what a step sends over them.

/**
 * @typedef {{a: string, b: string, from: number, to: number, link: any, there: any, back: any, bytes: number, known: boolean}} Pair
 * `there` and `back` are lines of the report, null where nothing is sent that way; not `known`: no way is shown yet
 */

/** @param {any} cluster @param {any} traffic @returns {Pair[]} the busiest first */
export function pairsOf(cluster, traffic) {
  const sent = new Map((traffic?.links ?? []).map((line) => [line.link, line]));
  const position = new Map(cluster.zones.map(({ name }, at) => [name, at]));
  return cluster.links
    .map((link) => {
      const [a, b] = link.between;
      const [there, back] = [sent.get(`${a} > ${b}`) ?? null, sent.get(`${b} > ${a}`) ?? null];
      return { a, b, from: position.get(a), to: position.get(b), link, there, back, known: traffic !== null, bytes: Math.max(there?.bytes_per_step ?? 0, back?.bytes_per_step ?? 0) };
    })
    .sort((one, other) => other.bytes - one.bytes);
}

/** Numbers as runs: [0, 1, 2, 5] is "0-2, 5". @param {number[]} numbers */
export function runs(numbers) {
  const found = [];
  for (const number of numbers) {
    const last = found.at(-1);
    if (last && last[1] === number - 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([first, end]) => (first === end ? `${first}` : `${first}-${end}`)).join(", ");
}
