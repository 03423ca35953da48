// Light or dark, and in which language, before anything is drawn: what the person chose, else what the machine prefers.
// Runs in the head. A page that is to be translated (language.js) is not drawn before.
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
    document.body?.classList.toggle("dark", dark); // Gradio's own name for it
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
