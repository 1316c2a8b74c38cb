// A scenario inside a link: its fields, compressed, after the # of the address, so that it never reaches a server's log.

const KEY = "s=";

/** @param {{name: string, fields: object}} scenario @returns {Promise<string>} what follows the # */
export async function packed(scenario) {
  const stream = new Blob([JSON.stringify(scenario)]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const text = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  return KEY + text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The scenario of the address, null when there is none or it cannot be read. @returns {Promise<{name: string, fields: object} | null>} */
export async function unpacked(hash = location.hash) {
  if (!hash.startsWith(`#${KEY}`)) return null;
  try {
    const text = atob(hash.slice(1 + KEY.length).replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(text, (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    const { name, fields } = await new Response(stream).json();
    return typeof name === "string" && fields && typeof fields === "object" ? { name, fields } : null;
  } catch {
    return null;
  }
}
