// The task being asked for: what is typed is kept for this tab, what is selected stands in the address.
import { useMemo, useState } from "../lib/dom.js";

const KEY = "crosszone.task";

/** @typedef {Record<string, any>} Draft what is typed; an empty text: the server's default */
/**
 * @typedef {object} Asking
 * @property {Draft} draft
 * @property {(changes: Draft) => void} set
 * @property {string[]} nodes environments that are selected, in the order of their selection
 * @property {string | null} master the one that is chosen while it is selected, else the first
 * @property {boolean} fresh a scheduler is asked for nodes
 * @property {boolean} ready there is something to say about what is selected
 * @property {boolean} several
 * @property {(id: string) => void} toggle
 * @property {(ids: string[]) => void} select
 * @property {(id: string) => void} lead choose the master
 * @property {any} body as the server takes it
 * @property {() => void} clear forget the name: the task was created
 */

/** A row of nodes that a scheduler is asked for. */
export const NO_NODES = { zone: "", gpu: "", nodes: "", gpus_per_node: "" };
/** @type {Draft} */
const NOTHING = {
  taskName: "", datasetId: "", datasetVersionId: "", modelId: "", launchMode: "existing", framework: "pytorch-ddp", planned: true,
  dataParallel: "1", pipelineParallel: "1", tensorParallel: "1", steps: "", seq_len: "", global_batch: "", precision: "", optimizer: "",
  maxRestarts: "", ignorePreflight: false, allocation: [NO_NODES],
};
export const DEGREES = ["dataParallel", "pipelineParallel", "tensorParallel"];
const JOB = ["steps", "seq_len", "global_batch", "precision", "optimizer"];

function keptDraft() {
  try {
    return { ...NOTHING, ...JSON.parse(sessionStorage.getItem(KEY)) };
  } catch {
    return NOTHING;
  }
}

function keepDraft(draft) {
  try {
    sessionStorage.setItem(KEY, JSON.stringify(draft));
  } catch {
    // storage may be forbidden; it stays in the page all the same
  }
}

/** A number where one was typed; other text goes as it is, and the server says what is wrong with it. */
const typedNumber = (text) => (text.trim() !== "" && Number.isFinite(Number(text)) ? Number(text) : text);
const given = (draft, names) => Object.fromEntries(names.filter((name) => draft[name] !== "").map((name) => [name, typedNumber(draft[name])]));

/** How many nodes the task has. @param {Draft} draft @param {string[]} nodes */
const countOf = (draft, nodes) => (isNew(draft) ? draft.allocation.reduce((sum, row) => sum + (Number(row.nodes) || 1), 0) : nodes.length);
const isNew = (draft) => draft.launchMode === "new";

/** @param {Draft} draft @param {string[]} nodes @param {string | null} master */
export function bodyOf(draft, nodes, master) {
  const several = countOf(draft, nodes) > 1;
  const shared = { framework: draft.framework || null, ...(draft.planned ? {} : { strategy: given(draft, DEGREES) }) };
  const where = !several ? {} : isNew(draft) ? shared : { masterNode: master, ...shared };
  const wanted = draft.allocation.filter((row) => row.zone).map((row) => ({ ...given(row, ["nodes", "gpus_per_node"]), zone: row.zone, ...(row.gpu ? { gpu: row.gpu } : {}) }));
  return {
    taskName: draft.taskName,
    datasetId: draft.datasetId,
    datasetVersionId: draft.datasetVersionId,
    modelId: draft.modelId,
    launchMode: draft.launchMode,
    distributedConfig: { enabled: several, nodeIds: isNew(draft) ? [] : nodes, ...where },
    ...(isNew(draft) ? { allocation: wanted } : {}),
    job: given(draft, JOB),
    policy: { ...given(draft, ["maxRestarts"]), ...(draft.ignorePreflight ? { ignorePreflight: true } : {}) },
  };
}

/** @param {import("../lib/address.js").Address} address @param {any} change @param {import("./entries.js").Entry[] | null} known @returns {Asking} */
export function useAsking(address, change, known) {
  const [draft, setDraft] = useState(keptDraft);
  const nodes = useMemo(() => {
    const asked = [...new Set((address.nodes ?? "").split(",").filter(Boolean))];
    return known ? asked.filter((id) => known.some((entry) => entry.id === id)) : asked;
  }, [address.nodes, known]);
  const master = nodes.includes(address.master) ? address.master : (nodes[0] ?? null);
  const set = (changes) =>
    setDraft((old) => {
      const next = { ...old, ...changes };
      keepDraft(next);
      return next;
    });
  const select = (ids) =>
    change({ nodes: ids.join(",") || null, master: ids.includes(address.master) ? address.master : null }, { step: false });
  return {
    draft,
    set,
    nodes,
    master,
    fresh: isNew(draft),
    ready: isNew(draft) ? draft.allocation.some((row) => row.zone) : nodes.length > 0,
    several: countOf(draft, nodes) > 1,
    select,
    toggle: (id) => select(nodes.includes(id) ? nodes.filter((one) => one !== id) : [...nodes, id]),
    lead: (id) => change({ master: id }, { step: false }),
    body: useMemo(() => bodyOf(draft, nodes, master), [draft, nodes, master]),
    clear: () => set({ taskName: "" }),
  };
}
