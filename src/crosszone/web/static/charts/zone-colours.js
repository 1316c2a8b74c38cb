// One colour for each zone, the same wherever zones are told apart by colour.

const TOKENS = ["block-1", "block-3", "block-2", "block-4", "block-5", "kind-expert", "kind-local", "kind-sharding", "kind-context", "work-other"];

/** @param {import("../lib/tokens.js").Tokens} tokens @param {number} zone position of the zone in the cluster */
export const zoneColour = (tokens, zone) => tokens[TOKENS[zone % TOKENS.length]];
