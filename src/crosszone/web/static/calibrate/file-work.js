// A file and what the server finds in it: handed in once, looked at as often as something about the question changes.
import { useEffect, useRef, useState } from "../lib/dom.js";
import { streamJson, uploadFile } from "../lib/api.js";
import { useText } from "../lib/text.js";

/**
 * @typedef {object} FileWork
 * @property {{id: string, name: string, bytes: number} | null} file the one that was handed in
 * @property {any} found what is in it; null: nothing yet
 * @property {import("../lib/api.js").Notice[]} notices what is wrong with it
 * @property {boolean} failed the server is out of reach
 * @property {boolean} busy
 * @property {boolean} stopped the user has stopped the work
 * @property {{what: string, done: number, of: number} | null} progress
 * @property {(file: File) => Promise<void>} take hand a file in and look at it
 * @property {(more?: any) => Promise<void>} look look at it again with another question
 * @property {() => void} cancel
 * @property {() => void} drop forget it
 */

const NOTHING = { file: null, found: null, notices: [], failed: false, busy: false, stopped: false, progress: null };

/** @param {string} path that reads the file @param {(more?: any) => any} question what is asked besides the file @returns {FileWork} */
export function useFileWork(path, question) {
  const { language } = useText();
  const [state, setState] = useState(NOTHING);
  const running = useRef(null);
  const mounted = useRef(true);
  useEffect(() => () => {
    mounted.current = false;
    running.current?.abort();
  }, []);

  const during = async (work) => {
    running.current?.abort();
    const stop = (running.current = new AbortController());
    const put = (changes) => mounted.current && running.current === stop && setState((old) => ({ ...old, ...changes }));
    put({ busy: true, stopped: false, notices: [], failed: false, progress: null });
    try {
      await work(stop.signal, put);
      put({ busy: false, progress: null });
    } catch (error) {
      if (error.name === "AbortError") put({ busy: false, stopped: true, progress: null });
      else put({ busy: false, progress: null, found: null, notices: error.notices ?? [], failed: !error.notices?.length });
    }
  };
  const read = async (file, more, signal, put) => {
    const found = await streamJson(path, { file: file.id, name: file.name, ...question(more) }, language, { signal, onProgress: (progress) => put({ progress }) });
    put({ found });
  };
  return {
    ...state,
    take: (given) => {
      setState({ ...NOTHING, file: { id: "", name: given.name, bytes: given.size } });
      return during(async (signal, put) => {
        const file = await uploadFile(given, language, signal);
        put({ file });
        await read(file, undefined, signal, put);
      });
    },
    look: (more) => (state.file?.id ? during((signal, put) => read(state.file, more, signal, put)) : Promise.resolve()),
    cancel: () => running.current?.abort(),
    drop: () => {
      running.current?.abort();
      setState(NOTHING);
    },
  };
}
