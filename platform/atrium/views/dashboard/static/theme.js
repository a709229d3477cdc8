// Light or dark before the first paint: what was chosen here before, else what the system prefers.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("atrium-theme");
  } catch {
    /* storage may be off */
  }
  const prefersDark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen || (prefersDark ? "dark" : "light");
})();
