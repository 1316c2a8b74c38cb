// Changes of the cluster that reach further than one field: links and placement name zones, and follow them.

/** @param {any} fields @returns {any[]} */
export const zonesOf = (fields) => (Array.isArray(fields?.cluster?.zones) ? fields.cluster.zones : []);
/** @param {any} fields @returns {any[]} */
export const linksOf = (fields) => (Array.isArray(fields?.cluster?.links) ? fields.cluster.links : []);
/** @param {any} zone @returns {any[]} */
export const groupsOf = (zone) => (Array.isArray(zone?.nodes) ? zone.nodes : []);

const withCluster = (fields, changes) => ({ ...fields, cluster: { ...fields.cluster, ...changes } });

/** A zone like the last one, under a name of its own. @param {any} fields @param {string} stem of the name */
export function withZone(fields, stem) {
  const zones = zonesOf(fields);
  const names = new Set(zones.map((zone) => zone?.name));
  let number = zones.length + 1;
  while (names.has(`${stem}-${number}`)) number += 1;
  const { name: _, ...like } = zones.at(-1) ?? {};
  const nodes = groupsOf(like).map(({ hosts: _hosts, ...group }) => group);
  return withCluster(fields, { zones: [...zones, { name: `${stem}-${number}`, ...like, nodes }] });
}

/** @param {any} fields @param {number} index @param {string} name one that no other zone has */
export function withZoneName(fields, index, name) {
  const zones = zonesOf(fields);
  const old = zones[index].name;
  const renamed = (one) => (one === old ? name : one);
  const next = withCluster(fields, { zones: zones.map((zone, at) => (at === index ? { ...zone, name } : zone)) });
  if (linksOf(fields).length) {
    next.cluster.links = linksOf(fields).map((link) =>
      Array.isArray(link?.between) ? { ...link, between: link.between.map(renamed) } : link,
    );
  }
  if (Array.isArray(fields.placement?.blocks)) {
    next.placement = { ...fields.placement, blocks: fields.placement.blocks.map((block) => ({ ...block, zone: renamed(block.zone) })) };
  }
  return next;
}

/** @param {any} fields @param {number} index */
export function withoutZone(fields, index) {
  const { name } = zonesOf(fields)[index];
  const next = withCluster(fields, { zones: zonesOf(fields).filter((_, at) => at !== index) });
  if (linksOf(fields).length) next.cluster.links = linksOf(fields).filter((link) => !link?.between?.includes(name));
  const blocks = fields.placement?.blocks;
  if (Array.isArray(blocks)) {
    const left = blocks.filter((block) => block.zone !== name);
    next.placement = left.length ? { ...fields.placement, blocks: left } : undefined;
    if (!left.length) delete next.placement;
  }
  return next;
}

/** @param {any} fields @param {number} index @param {number} by */
export function withZoneMoved(fields, index, by) {
  const zones = [...zonesOf(fields)];
  const [zone] = zones.splice(index, 1);
  zones.splice(index + by, 0, zone);
  return withCluster(fields, { zones });
}

/** Position of the link between two zones; -1: it is not listed. @param {any} fields @param {[string, string]} pair */
export const linkIndex = (fields, pair) => linksOf(fields).findIndex((link) => pair.every((name) => link?.between?.includes(name)));

/** A figure of a link set; undefined: derived again. A link that says nothing is not listed. @param {any} fields @param {[string, string]} pair @param {string} key @param {unknown} value */
export function withLinkFigure(fields, pair, key, value) {
  const links = [...linksOf(fields)];
  const at = linkIndex(fields, pair);
  const link = { ...(at < 0 ? { between: pair } : links[at]) };
  if (value === undefined) delete link[key];
  else link[key] = value;
  if (Object.keys(link).some((one) => one !== "between")) links.splice(at < 0 ? links.length : at, 1, link);
  else if (at >= 0) links.splice(at, 1);
  return withCluster(fields, { links });
}
