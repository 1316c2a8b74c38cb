// The strings of the page, from the server's language files.
import { createContext, useContext, useEffect, useState } from "./dom.js";
import { fetchJson } from "./api.js";
import { formatters } from "./format.js";

export const LANGUAGES = [["en", "English"], ["zh", "中文"]];

export const TextContext = createContext(null);

/** `{t, label, language, amount, ...}`: the strings and number formats of the chosen language. */
export const useText = () => useContext(TextContext);

/** The texts of a language, null until they are there; the old ones stay while new ones load. */
export function useTexts(language, onFailure) {
  const [texts, setTexts] = useState(null);
  useEffect(() => {
    let wanted = true;
    fetchJson(`text/${language}`).then(
      (body) => wanted && setTexts(textsOf(body)),
      (error) => wanted && onFailure(error),
    );
    return () => (wanted = false);
  }, [language]);
  return texts;
}

function textsOf({ language, page, label, framework }) {
  const find = (key) => key.split(".").reduce((inner, step) => inner?.[step], page);
  return {
    language,
    /** The string `key` with {parameters} put in; `key_one`, where there is one, for a count of 1. */
    t(key, parameters) {
      const single = parameters?.count === "1" || parameters?.count === 1 ? find(`${key}_one`) : undefined;
      const found = single ?? find(key);
      if (typeof found !== "string") {
        console.error(`no text for ${key}`);
        return key;
      }
      return parameters ? found.replace(/\{(\w+)\}/g, (_, name) => parameters[name]) : found;
    },
    /** A word the command line uses too: a part of a model, the origin of a figure, a level. */
    label(key) {
      if (!(key in label)) console.error(`no label for ${key}`);
      return label[key] ?? key;
    },
    /** What a training framework is called. @param {string} name */
    framework: (name) => framework[name] ?? name,
    ...formatters(language),
  };
}
