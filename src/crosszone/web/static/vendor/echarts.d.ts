// What the page uses of ECharts, for the type check.
export function init(element: Element, theme?: unknown, options?: object): any;
export function registerMap(name: string, map: unknown): void;
export const graphic: any;
