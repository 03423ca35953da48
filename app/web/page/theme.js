// Sets the theme and the language before the first paint: the person's choice, otherwise the system's preference. Runs
// in the head. A page that will be translated is hidden until its translation is shown (language.js).
(() => {
  const prefers = matchMedia("(prefers-color-scheme: dark)");
  const kept = (name) => {
    try {
      return localStorage.getItem(name);
    } catch {
      return null;
    }
  };
  const chosen = () => kept("trifold-theme");
  const apply = () => {
    const dark = (chosen() ?? (prefers.matches ? "dark" : "light")) === "dark";
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    document.body?.classList.toggle("dark", dark); // Gradio's class
    document.querySelector('meta[name="theme-color"]')?.setAttribute("content", dark ? "#171512" : "#faf7f0");
  };
  apply();
  const language = kept("trifold-language") ?? navigator.language;
  if (!language.startsWith("en")) document.documentElement.dataset.language = "coming";
  prefers.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", apply);
  window.trifoldTheme = {
    apply,
    toggle() {
      const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("trifold-theme", next);
      } catch {
        document.documentElement.dataset.theme = next;
      }
      apply();
      return next;
    },
  };
})();
