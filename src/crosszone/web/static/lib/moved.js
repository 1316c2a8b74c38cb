// A plan changed by hand: layers moved between its stages, its blocks of GPUs put in another order. Short enough for the address:
// "1~20.22.19.19~0.2.1" is plan 1 with these layers and its blocks in that order.

/** @typedef {{base: string, layers: number[] | null, order: number[] | null}} Moved `null`: as the plan has it */

const numbers = (text) => (text ? text.split(".").map(Number) : null);

/** @param {string | null} text @returns {Moved | null} */
export function readMoved(text) {
  const [base, layers, order] = (text ?? "").split("~");
  return base ? { base, layers: numbers(layers), order: numbers(order) } : null;
}

/** @param {Moved} moved */
export const movedText = ({ base, layers, order }) => [base, layers?.join(".") ?? "", order?.join(".") ?? ""].join("~");

/** How the changed plan is done; null: the plan is no longer one these changes fit. @param {any} plan @param {Moved} moved */
export function movedWay({ framework, strategy, placement }, { layers, order }) {
  const blocks = placement.blocks;
  const known = strategy.layers_per_stage ?? layers;
  if (layers && (layers.length !== known.length || layers.some((count) => !Number.isInteger(count) || count < 0))) return null;
  if (order && [...order].sort((a, b) => a - b).some((position, at) => position !== at)) return null;
  if (order && order.length !== blocks.length) return null;
  return {
    framework,
    strategy: layers ? { ...strategy, layers_per_stage: layers } : strategy,
    placement: order ? { ...placement, blocks: order.map((position) => blocks[position]) } : placement,
  };
}
