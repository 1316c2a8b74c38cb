// Runs before the first paint, so that a dark page never flashes white. The address wins, then the last choice, then the system.
(() => {
  const known = (theme) => (theme === "light" || theme === "dark" ? theme : null);
  let kept = null;
  try {
    kept = localStorage.getItem("crosszone.theme");
  } catch {
    // storage may be forbidden; the choice then lasts as long as the page
  }
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const asked = new URLSearchParams(location.search).get("theme");
  document.documentElement.dataset.theme = known(asked) ?? known(kept) ?? system;
})();
