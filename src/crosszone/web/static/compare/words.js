// Names of classes, parts and phases.

/** @param {any} text what useText gives @param {string} way classes, parts or phases @returns {(name: string) => string} */
export const wordOf = (text, way) => (name) =>
  way === "phases" ? text.t(`compare.phase.${name}`) : text.label(`${way === "classes" ? "class" : "step"}_${name}`);
