// Rows that the server keeps (results, bundles): listed, saved and deleted there; the list here follows.
import { useCallback, useEffect, useState } from "./dom.js";
import { deleteJson, fetchJson, postJson } from "./api.js";

/**
 * @template Row
 * @typedef {object} Rows
 * @property {Row[] | null} rows newest first; null until they are there
 * @property {boolean} more there are older ones
 * @property {import("./api.js").Notice[]} notices why the last thing could not be done
 * @property {boolean} failed the server is out of reach
 * @property {() => Promise<void>} older load older ones
 * @property {(body: any) => Promise<Row>} save save one; throws what the server refuses
 * @property {(edit: (rows: Row[]) => Row[]) => void} change change the list here
 * @property {(ids: string[]) => Promise<void>} remove delete some
 */

/**
 * @template {{id: string}} Row
 * @param {string} path of the rows under the API
 * @param {number} limit rows of a page
 * @param {string} language
 * @returns {Rows<Row>}
 */
export function useRows(path, limit, language) {
  const [state, setState] = useState({ rows: null, before: null, notices: [], failed: false });
  const fail = (error) => setState((old) => ({ ...old, notices: error.notices ?? [], failed: !error.notices?.length }));
  const load = useCallback(
    (before) =>
      fetchJson(`${path}?limit=${limit}${before ? `&before=${encodeURIComponent(before)}` : ""}`, language).then(
        (page) => setState((old) => ({ rows: before ? [...old.rows, ...page.rows] : page.rows, before: page.before, notices: [], failed: false })),
        fail,
      ),
    [language],
  );
  useEffect(() => void load(null), []);

  const change = (edit) => setState((old) => ({ ...old, notices: [], failed: false, rows: edit(old.rows ?? []) }));
  return {
    rows: state.rows,
    more: state.before !== null,
    notices: state.notices,
    failed: state.failed,
    older: () => load(state.before),
    save: async (body) => {
      const made = await postJson(path, body, language);
      change((rows) => [made, ...rows]);
      return made;
    },
    change,
    remove: async (ids) => {
      for (const id of ids) {
        try {
          await deleteJson(`${path}/${id}`, language);
        } catch (error) {
          if (error.status !== 404) return fail(error);
        }
        change((rows) => rows.filter((row) => row.id !== id));
      }
    },
  };
}
