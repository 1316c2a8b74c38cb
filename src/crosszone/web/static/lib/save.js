// Files for the user to keep.

/** @param {Blob} blob @param {string} name */
export function saveBlob(blob, name) {
  const address = URL.createObjectURL(blob);
  saveAddress(address, name);
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** @param {string} text @param {string} name @param {string} [type] */
export const saveText = (text, name, type = "text/plain") => saveBlob(new Blob([text], { type }), name);

/** @param {string} address of data: or blob: @param {string} name */
export function saveAddress(address, name) {
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = name;
  anchor.click();
}

/** Rows as CSV. @param {string[]} columns @param {unknown[][]} rows */
export function csvText(columns, rows) {
  const cell = (value) => (/[",\n]/.test(String(value ?? "")) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? ""));
  return [columns, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

/** A name that every file system takes. @param {string} name */
export const fileName = (name) => name.replace(/^\w+:/, "").replace(/\.(ya?ml|json)$/, "").replace(/[^\p{L}\p{N}._-]+/gu, "-") || "scenario";
