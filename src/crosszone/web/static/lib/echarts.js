// ECharts, fetched when the first chart is drawn: the page shows its figures before.
import { useEffect, useState } from "./dom.js";

let library = null;
const loading = () => import("../vendor/echarts.js").then((loaded) => (library = loaded));

/** The library, null until it is there. @returns {typeof import("../vendor/echarts.js") | null} */
export function useEcharts() {
  const [loaded, setLoaded] = useState(library);
  useEffect(() => {
    let wanted = true;
    if (!loaded) loading().then((found) => wanted && setLoaded(found));
    return () => (wanted = false);
  }, []);
  return loaded;
}
