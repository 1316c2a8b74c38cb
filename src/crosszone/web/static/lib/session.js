// The way in where the server asks for a token: traded once for a cookie that scripts cannot read.

/** What lib/api.js dispatches on `window` when the server asks for the token. */
export const LOCKED = "crosszone:locked";

/**
 * Hands the token to the server.
 * @param {string} token
 * @returns {Promise<{opened: boolean, message?: string, hint?: string}>}
 */
export async function handIn(token, language) {
  try {
    const answer = await fetch(`/api/v1/session?lang=${language}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token }),
    });
    return answer.ok ? { opened: true } : { opened: false, ...(await answer.json()) };
  } catch {
    return { opened: false };
  }
}

/**
 * The token that the address carries behind its `#`, once: it is taken out, so that no bookmark, history or
 * screenshot keeps it.
 * @returns {string | null}
 */
export function takeAddressToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token !== null) history.replaceState(history.state, "", location.pathname + location.search);
  return token;
}
