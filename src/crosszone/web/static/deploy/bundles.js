// The saved bundles.
import { useRows } from "../lib/rows.js";

const PAGE = 50;

/** @typedef {{id: string, name: string, framework: string, launcher: string, template: boolean, world_size: number, nodes: number, created: string, bytes: number}} BundleRow */
/** @typedef {import("../lib/rows.js").Rows<BundleRow>} Bundles */

/** @param {string} language @returns {Bundles} */
export const useBundles = (language) => useRows("bundles", PAGE, language);
