// What was edited, kept for this tab so that a reload loses nothing.

const KEY = "crosszone.draft";

/**
 * @typedef {{name: string, text: string | null, fields: any, base: string | null, link?: string}} Draft text as typed, or fields as set in
 * the form (text null) over a text that was typed before (base); link: the # part of the address that stands for it
 */

/** @returns {Draft | null} */
export function readDraft() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY));
  } catch {
    return null;
  }
}

/** @param {Draft} draft */
export function writeDraft(draft) {
  try {
    sessionStorage.setItem(KEY, JSON.stringify(draft));
  } catch {
    // too large or forbidden: it stays in the page all the same
  }
}

export function dropDraft() {
  try {
    sessionStorage.removeItem(KEY);
  } catch {
    // nothing was kept
  }
}
