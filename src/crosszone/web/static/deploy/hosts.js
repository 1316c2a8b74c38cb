// Machines of node groups as they are typed: rows of text, and what a scenario says of them.
import { groupsOf, zonesOf } from "../scenario/zone-edits.js";

/** @typedef {{address: string, interface: string, name: string}} HostRow */

/** Machines a form lists at most: more are written as text. */
const MOST = 10_000;

/** Several machines take part and no address is known. @param {any} fields of a scenario */
export function hostsUnknown(fields) {
  const groups = zonesOf(fields).flatMap(groupsOf);
  return (groups.length > 1 || groups[0]?.count > 1) && !groups.some((group) => group?.hosts?.length > 0);
}

/** What was typed belongs to the group as it is now: another count or other hosts, and it is gone. @param {(string | number)[]} path @param {any} group */
export const keyOf = (path, group) => `${path.join(".")} ${group?.count ?? 1} ${JSON.stringify(group?.hosts ?? null)}`;

/** @param {any} group @returns {HostRow[]} */
export function rowsOf(group) {
  const count = Number.isInteger(group?.count) && group.count > 0 ? Math.min(group.count, MOST) : 1;
  const hosts = Array.isArray(group?.hosts) ? group.hosts : [];
  const word = (value) => (value === undefined || value === null ? "" : String(value));
  return Array.from({ length: Math.max(count, Math.min(hosts.length, MOST)) }, (_, at) => ({
    address: word(hosts[at]?.address),
    interface: word(hosts[at]?.interface),
    name: word(hosts[at]?.name),
  }));
}

/** The `hosts` of a group; undefined: none is known. What else a host says stays. @param {HostRow[]} rows @param {any} group */
export function hostsWritten(rows, group) {
  if (!rows.some((row) => row.address.trim())) return undefined;
  return rows.map((row, at) => {
    const { name: _name, address: _address, interface: _interface, ...more } = group?.hosts?.[at] ?? {};
    const said = { ...(row.name.trim() && { name: row.name.trim() }), address: row.address.trim(), ...(row.interface.trim() && { interface: row.interface.trim() }) };
    return { ...said, ...more };
  });
}

/** Rows with pasted lines put in from one row on: address, then interface and name where a line has them. @param {HostRow[]} rows @param {number} from @param {string} text */
export function pasted(rows, from, text) {
  const lines = text.split(/\r?\n/).map((line) => line.trim()).filter((line) => line && !line.startsWith("#"));
  return rows.map((row, at) => {
    const words = lines[at - from]?.split(/[\s,;]+/);
    return words ? { address: words[0], interface: words[1] ?? row.interface, name: words[2] ?? row.name } : row;
  });
}

/**
 * What is wrong with hosts: by the path of the group, then by "row.key".
 * @param {import("../lib/api.js").Notice[]} notices @param {any[]} zones @returns {Map<string, Map<string, string>>}
 */
export function wrongHosts(notices, zones) {
  const found = new Map();
  for (const notice of notices) {
    const match = /^cluster\.zones(?:\[(\d+)\]|\.(.+?))\.nodes\[(\d+)\]\.hosts\[(\d+)\]\.(\w+)$/.exec(notice.field);
    if (!match) continue;
    const zone = match[1] ?? zones.findIndex((one) => one?.name === match[2]);
    const path = ["cluster", "zones", zone, "nodes", match[3]].join();
    if (!found.has(path)) found.set(path, new Map());
    found.get(path).set(`${match[4]}.${match[5]}`, `${notice.message} ${notice.hint}`);
  }
  return found;
}
