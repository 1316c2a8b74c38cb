// Calls of the HTTP API. A refusal is an ApiError that carries the notices of the answer.
import { LOCKED } from "./session.js";

/** @typedef {{code: string, level: string, message: string, field: string, hint: string, value: any, file: string | null, line: number | null}} Notice */

export class ApiError extends Error {
  /** @param {number} status 0: the server is out of reach @param {Notice[]} notices */
  constructor(status, notices) {
    super(notices[0]?.message ?? `HTTP ${status}`);
    this.status = status;
    this.notices = notices;
  }
}

/** @param {string} path below /api/v1/ @param {string} [language] @param {AbortSignal} [signal] */
export const fetchJson = (path, language, signal) => call(path, language, { signal }).then((answer) => answer.json());

/** @param {string} path @param {string} [language] */
export const fetchText = (path, language) => call(path, language).then((answer) => answer.text());

/** @param {string} path @param {unknown} body @param {string} [language] @param {AbortSignal} [signal] @param {Record<string, string>} [headers] */
export const postJson = (path, body, language, signal, headers) => send("POST", path, body, language, signal, headers).then((answer) => answer.json());

/** @param {string} path @param {unknown} body @param {string} [language] */
export const putJson = (path, body, language) => send("PUT", path, body, language).then((answer) => answer.json());

/** @param {string} path @param {unknown} body @param {string} [language] */
export const patchJson = (path, body, language) => send("PATCH", path, body, language).then((answer) => answer.json());

/** @param {string} path @param {string} [language] */
export const deleteJson = (path, language) => call(path, language, { method: "DELETE" });

/** The answer as a file to save: its text or bytes as a Blob. @param {string} path @param {unknown} body @param {string} [language] */
export const postBlob = (path, body, language) => send("POST", path, body, language).then((answer) => answer.blob());

/**
 * Long work: told while it is done, stopped by the signal.
 * @param {string} path
 * @param {unknown} body
 * @param {string} language
 * @param {{onProgress?: (progress: {what: string, done: number, of: number}) => void, signal?: AbortSignal}} [how]
 */
export const streamJson = (path, body, language, how = {}) =>
  send("POST", path, body, language, how.signal, { Accept: STREAM }).then((answer) => lastOf(answer, how));

/** Long work that takes nothing but its address. @param {string} path @param {string} language @param {{onProgress?: (progress: {what: string, done: number, of: number}) => void, signal?: AbortSignal}} [how] */
export const streamFetch = (path, language, how = {}) =>
  call(path, language, { headers: { Accept: STREAM }, signal: how.signal }).then((answer) => lastOf(answer, how));

/**
 * Answers that come line by line, each a JSON value.
 * @param {string} path
 * @param {unknown} body
 * @param {string} language
 * @param {(line: any) => void} onLine
 * @param {AbortSignal} [signal]
 */
export async function postLines(path, body, language, onLine, signal) {
  const answer = await send("POST", path, body, language, signal, { Accept: LINES });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) onLine(JSON.parse(line));
  }
}

/** Hands a file to the server as it is; the answer names it. @param {File} file @param {string} language @param {AbortSignal} [signal] @returns {Promise<{id: string, name: string, bytes: number}>} */
export const uploadFile = (file, language, signal) =>
  call(`calibrate/files?name=${encodeURIComponent(file.name.slice(-200))}`, language, {
    method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file, signal,
  }).then((answer) => answer.json());

const STREAM = "text/event-stream";
const LINES = "application/x-ndjson";

/** What a stream ends with; its progress is told on the way. @param {Response} answer @param {{onProgress?: (progress: any) => void}} how */
async function lastOf(answer, { onProgress }) {
  if (!answer.headers.get("content-type")?.startsWith(STREAM)) return answer.json();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError(0, []);
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const name = /^event: (\w+)$/m.exec(event)?.[1];
      const data = /^data: (.*)$/m.exec(event)?.[1];
      if (name === "progress") onProgress?.(JSON.parse(data));
      if (name === "result") return JSON.parse(data);
      if (name === "error") throw new ApiError(422, JSON.parse(data).errors);
    }
  }
}

/** One segment of a path; slashes stay, since aliases such as meta-llama/llama-2-7b-hf hold them. @param {string} name */
export const segment = (name) => encodeURIComponent(name).replaceAll("%2F", "/");

function send(method, path, body, language, signal, headers = {}) {
  const sent = { "Content-Type": "application/json", ...headers };
  return call(path, language, { method, headers: sent, body: JSON.stringify(body), signal });
}

async function call(path, language, options) {
  const address = new URL(`/api/v1/${path}`, location.origin);
  if (language) address.searchParams.set("lang", language);
  let answer;
  try {
    answer = await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, []);
  }
  if (answer.status === 401) dispatchEvent(new CustomEvent(LOCKED));
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    throw new ApiError(answer.status, body.errors ?? []);
  }
  return answer;
}
