// The saved results: as other rows, and they can be renamed.
import { patchJson } from "../lib/api.js";
import { useRows } from "../lib/rows.js";

const PAGE = 200;

/** @typedef {{id: string, kind: string, name: string, note: string, created: string, headline: any}} ResultRow */
/** @typedef {import("../lib/rows.js").Rows<ResultRow> & {rename: (id: string, name: string) => Promise<void>}} Results rename throws what the server refuses */

/** @param {string} language @returns {Results} */
export function useResults(language) {
  /** @type {import("../lib/rows.js").Rows<ResultRow>} */
  const kept = useRows("results", PAGE, language);
  const rename = async (id, name) => {
    const named = await patchJson(`results/${id}`, { name }, language);
    kept.change((rows) => rows.map((row) => (row.id === id ? named : row)));
  };
  return { ...kept, rename };
}
