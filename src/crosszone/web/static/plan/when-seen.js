import { html, useEffect, useRef, useState } from "../lib/dom.js";

/** Pixels before the edge of the window at which something counts as seen. */
const NEAR = "400px";

/** What is far down the page is made, and asks its questions, when the user comes near it or prints. @param {{children: any}} given */
export function WhenSeen({ children }) {
  const place = useRef(null);
  const [seen, setSeen] = useState(false);
  useEffect(() => {
    const show = () => setSeen(true);
    const watcher = new IntersectionObserver((entries) => entries.some(({ isIntersecting }) => isIntersecting) && show(), { rootMargin: NEAR });
    watcher.observe(place.current);
    addEventListener("beforeprint", show);
    return () => {
      watcher.disconnect();
      removeEventListener("beforeprint", show);
    };
  }, []);
  return html`<div ref=${place} class=${seen ? "" : "unseen"}>${seen && children}</div>`;
}
