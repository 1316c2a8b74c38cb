// What was typed, kept for this tab so that a reload loses nothing.

const KEY = "crosszone.draft";

export function readDraft() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY));
  } catch {
    return null;
  }
}

export function writeDraft(name, text) {
  try {
    sessionStorage.setItem(KEY, JSON.stringify({ name, text }));
  } catch {
    // too large or forbidden: the text stays in the editor all the same
  }
}

export function dropDraft() {
  try {
    sessionStorage.removeItem(KEY);
  } catch {
    // nothing was kept
  }
}
