// Requests that follow the user's changes. Parts of one scenario that are asked for within one tick share a request, whose
// answers come back line by line; longer work has a request of its own. At most two are on their way, the newest scenario first.
import { ApiError, postLines } from "./api.js";
import { useAsked } from "./asked.js";

/** Requests on their way at a time: one with answers and one with longer work, or two with answers. */
const MOST = 2;
/** Milliseconds that a request nobody waits for any more may go on without an answer. */
const PATIENCE_MS = 1000;
/** Parts about the scenario as it is written, whatever the way shown. */
const WRITTEN = new Set(["describe", "edit", "written"]);

/**
 * @typedef {{text?: string, scenario?: any, way?: any, options?: any}} Question a scenario, how it is done, and what the part takes besides
 * @typedef {{part: string, question: Question, language: string, signal?: AbortSignal, resolve: (answer: any) => void, reject: (error: any) => void}} Want
 * @typedef {{wants: Want[], stop: AbortController, answered: boolean, timer?: ReturnType<typeof setTimeout>}} Sent
 */

/** @type {Want[]} */
let waiting = [];
/** @type {{start: () => Promise<void>}[]} */
let works = [];
/** @type {Set<Sent>} */
const sent = new Set();
let working = 0;
let timer = null;

/**
 * The answer of one part, as `useAsked` has it.
 * @param {string} part
 * @param {Question | null} question null: nothing to ask yet
 * @param {string} language
 */
export const usePart = (part, question, language) =>
  useAsked(question, (asked, signal) => askPart(part, asked, language, signal), { also: [language] });

/**
 * One part of POST /answers. A signal that is given up before the request is sent takes the part out; later, its answer may still come.
 * @param {string} part
 * @param {Question} question
 * @param {string} language
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export function askPart(part, question, language, signal) {
  return new Promise((resolve, reject) => {
    const want = { part, question, language, signal, resolve, reject };
    waiting.push(want);
    signal?.addEventListener("abort", () => giveUp(want));
    timer ??= setTimeout(dispatch);
  });
}

/**
 * Longer work, one at a time beside the answers, the newest first.
 * @template T
 * @param {() => Promise<T>} work
 * @param {AbortSignal} signal ends the wait for its turn; the work itself is to heed it too
 * @returns {Promise<T>}
 */
export function runAlone(work, signal) {
  return new Promise((resolve, reject) => {
    const entry = { start: () => work().then(resolve, reject) };
    works.push(entry);
    signal.addEventListener("abort", () => {
      works = works.filter((other) => other !== entry);
      reject(gaveUp()); // of no effect once the work has begun and ended
    });
    timer ??= setTimeout(dispatch);
  });
}

/** Sends what there is room for. */
function dispatch() {
  timer = null;
  while (waiting.length && sent.size + working < MOST) void send(takeNewest());
  if (works.length && !working && sent.size < MOST) {
    working = 1;
    works.pop().start().finally(() => {
      working = 0;
      dispatch();
    });
  }
}

/** Takes those out of the line that share the newest scenario and its way; of one part with other options only the first. @returns {Want[]} */
function takeNewest() {
  const { question, language } = waiting.at(-1);
  const related = waiting.filter((want) => want.language === language && want.question.scenario === question.scenario && want.question.text === question.text);
  const way = wayOf(related);
  const options = new Map();
  const taken = related.filter((want) => {
    if (!WRITTEN.has(want.part) && JSON.stringify(want.question.way) !== JSON.stringify(way)) return false;
    const own = JSON.stringify(want.question.options ?? null);
    if (!options.has(want.part)) options.set(want.part, own);
    return options.get(want.part) === own;
  });
  waiting = waiting.filter((want) => !taken.includes(want));
  return taken;
}

/** How the newest of these does it. @param {Want[]} wants */
const wayOf = (wants) => wants.findLast(({ part }) => !WRITTEN.has(part))?.question.way;

/** @param {Want[]} wants of one scenario and way */
async function send(wants) {
  /** @type {Sent} */
  const request = { wants, stop: new AbortController(), answered: false };
  const [{ question, language }] = wants;
  const { text, scenario } = question;
  const options = Object.fromEntries(wants.filter((want) => want.question.options).map((want) => [want.part, want.question.options]));
  const body = { text, scenario, way: wayOf(wants), parts: [...new Set(wants.map(({ part }) => part))], options };
  sent.add(request);
  let ending = new ApiError(0, []); // an answer that ends early has lost its server
  try {
    await postLines("answers", body, language, (line) => deliver(request, line), request.stop.signal);
  } catch (error) {
    ending = error;
  }
  clearTimeout(request.timer);
  sent.delete(request);
  for (const want of request.wants) want.reject(ending);
  dispatch();
}

/** @param {Sent} request @param {{part: string, answer?: any, error?: {errors: import("./api.js").Notice[]}}} line */
function deliver(request, { part, answer, error }) {
  const answered = request.wants.filter((want) => want.part === part);
  request.wants = request.wants.filter((want) => want.part !== part);
  request.answered = true;
  for (const want of answered) {
    if (error) want.reject(new ApiError(422, error.errors));
    else want.resolve(answer);
  }
  endIfOvertaken(request);
}

/** @param {Want} want */
function giveUp(want) {
  if (waiting.includes(want)) {
    waiting = waiting.filter((other) => other !== want);
    want.reject(gaveUp());
  }
  for (const request of sent) if (request.wants.includes(want)) endIfOvertaken(request);
}

/**
 * Ends a request that nobody waits for any more, but not before its first answer: while a slider is dragged each request is
 * overtaken by the next, and numbers would stand still until it rests.
 * @param {Sent} request
 */
function endIfOvertaken(request) {
  if (!request.wants.length || request.wants.some(({ signal }) => !signal?.aborted)) return;
  if (request.answered) request.stop.abort();
  else request.timer ??= setTimeout(() => request.stop.abort(), PATIENCE_MS);
}

const gaveUp = () => new DOMException("overtaken", "AbortError");
