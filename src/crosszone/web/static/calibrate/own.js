// Own profiles as the server keeps them; the list here follows what is done with them.
import { useCallback, useEffect, useState } from "../lib/dom.js";
import { deleteJson, fetchJson, postJson, putJson, segment } from "../lib/api.js";

/**
 * @typedef {object} Own
 * @property {any} list default, own and operators; null until it is there
 * @property {import("../lib/api.js").Notice[]} notices why the last thing could not be done
 * @property {boolean} failed the server is out of reach
 * @property {(name: string | null) => Promise<void>} use make a profile the default; null: the shipped values
 * @property {(name: string) => Promise<void>} remove
 * @property {(body: any) => Promise<any>} save keep one; throws what the server refuses
 */

/** @param {string} language @returns {Own} */
export function useOwn(language) {
  const [state, setState] = useState({ list: null, notices: [], failed: false });
  const fail = (error) => setState((old) => ({ ...old, notices: error.notices ?? [], failed: !error.notices?.length }));
  const load = useCallback(() => fetchJson("calibrate/profiles", language).then((list) => setState({ list, notices: [], failed: false }), fail), [language]);
  useEffect(() => void load(), [load]);
  return {
    ...state,
    use: (name) => putJson("calibrate/default", { name }, language).then(load, fail),
    remove: (name) => deleteJson(`calibrate/profiles/${segment(name)}`, language).then(load, fail),
    save: async (body) => {
      const made = await postJson("calibrate/profiles", body, language);
      await load();
      return made;
    },
  };
}
