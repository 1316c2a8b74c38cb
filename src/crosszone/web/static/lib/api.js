// Calls of the HTTP API. A refusal is an ApiError that carries the notices of the answer.

export class ApiError extends Error {
  constructor(status, notices) {
    super(notices[0]?.message ?? `HTTP ${status}`);
    this.status = status;
    this.notices = notices;
  }
}

export const fetchJson = (path, language) => call(path, language).then((answer) => answer.json());

export const fetchText = (path, language) => call(path, language).then((answer) => answer.text());

export const postJson = (path, body, language) =>
  call(path, language, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  }).then((answer) => answer.json());

/** One segment of a path; slashes stay, since aliases such as meta-llama/llama-2-7b-hf hold them. */
export const segment = (name) => encodeURIComponent(name).replaceAll("%2F", "/");

async function call(path, language, options) {
  const address = new URL(`/api/v1/${path}`, location.origin);
  if (language) address.searchParams.set("lang", language);
  let answer;
  try {
    answer = await fetch(address, options);
  } catch {
    throw new ApiError(0, []);
  }
  if (!answer.ok) {
    const body = await answer.json().catch(() => ({}));
    throw new ApiError(answer.status, body.errors ?? []);
  }
  return answer;
}
