// What the server has registered (environments, datasets, models): listed, added, changed and deleted there; the list here follows.
import { useCallback, useEffect, useState } from "../lib/dom.js";
import { deleteJson, fetchJson, postJson, putJson } from "../lib/api.js";

/** @typedef {{id: string, created: string, changed: string, value: any}} Entry */
/**
 * @typedef {object} Entries
 * @property {Entry[] | null} entries null until they are there
 * @property {import("../lib/api.js").Notice[]} notices why the last thing could not be done
 * @property {boolean} failed the server is out of reach
 * @property {() => Promise<void>} reload
 * @property {(id: string | null, body: any) => Promise<Entry>} save under an id that is there, or as a new one; throws what the server refuses
 * @property {(id: string) => Promise<void>} remove
 */

/** @param {string} path below /api/v1/ @param {string} language @returns {Entries} */
export function useEntries(path, language) {
  const [state, setState] = useState({ entries: null, notices: [], failed: false });
  const fail = (error) => setState((old) => ({ ...old, notices: error.notices ?? [], failed: !error.notices?.length }));
  const reload = useCallback(
    () => fetchJson(path, language).then(({ entries }) => setState({ entries, notices: [], failed: false }), fail),
    [path, language],
  );
  useEffect(() => void reload(), [reload]);
  return {
    ...state,
    reload,
    save: async (id, body) => {
      const made = id === null ? await postJson(path, body, language) : await putJson(`${path}/${encodeURIComponent(id)}`, body, language);
      await reload();
      return made;
    },
    remove: (id) => deleteJson(`${path}/${encodeURIComponent(id)}`, language).then(reload, fail),
  };
}
