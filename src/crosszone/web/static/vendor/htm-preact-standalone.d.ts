// What the page uses of htm and Preact, for the type check.
type Cleanup = void | (() => void);
export function html(strings: TemplateStringsArray, ...values: unknown[]): any;
export function render(node: unknown, parent: Element | null): void;
export function createContext<T>(value: T): { Provider: any };
export function useContext<T>(context: { Provider: any }): any;
export function useCallback<T extends (...given: any[]) => any>(callback: T, inputs: unknown[]): T;
export function useEffect(effect: () => unknown, inputs?: unknown[]): void;
export function useLayoutEffect(effect: () => unknown, inputs?: unknown[]): void;
export function useMemo<T>(factory: () => T, inputs: unknown[]): T;
export function useRef<T = any>(value?: T | null): { current: any };
export function useState<T = any>(initial: T | (() => T)): [any, (next: any) => void];
