// Sets the color theme before the first paint: the user's earlier choice, or else the system's preference.
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
