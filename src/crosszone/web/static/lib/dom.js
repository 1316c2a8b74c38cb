// The one place that names the vendored library.
export {
  html, render, createContext, useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState,
} from "../vendor/htm-preact-standalone.js";
