// The frame: the model's line, light and dark, and the two panels that are drawers on a narrow screen.

const byId = (id) => document.getElementById(id);

export async function post(path, body) {
  const answer = await fetch(path, { method: "POST", body: JSON.stringify(body ?? {}) });
  if (answer.ok) return null;
  return answer.json().catch(() => ({ cause: "Trifold did not answer as it should.", remedy: "Try it again." }));
}

// As ``post``, for those who want what comes back: its JSON, an error's two sentences among it.
export async function call(path, body) {
  const failed = { cause: "Trifold did not answer.", remedy: "Is it still running?" };
  const answer = await fetch(path, { method: "POST", body: JSON.stringify(body ?? {}) }).catch(() => null);
  return answer ? answer.json().catch(() => failed) : failed;
}

export function showModel(model) {
  const root = byId("trifold");
  root.dataset.model = model.state;
  root.dataset.here = model.here === false ? "no" : "yes";
  byId("model-name").textContent = model.line;
  const line = byId("model-line");
  line.title = [model.detail, ...model.parts].filter(Boolean).join("\n");
  byId("model-words").textContent = model.detail;
}

export function bindFrame() {
  byId("theme").addEventListener("click", () => window.trifoldTheme.toggle());
  const drawers = { shelf: byId("open-shelf"), figures: byId("open-figures") };
  const root = byId("trifold");
  const open = (name) => {
    root.dataset.drawer = name;
    byId("veil").hidden = !name;
    for (const [id, button] of Object.entries(drawers)) button.setAttribute("aria-expanded", String(id === name));
    if (name) byId(name).querySelector("[data-close]").focus();
  };
  for (const [id, button] of Object.entries(drawers)) {
    button.addEventListener("click", () => open(root.dataset.drawer === id ? "" : id));
    byId(id).querySelector("[data-close]").addEventListener("click", () => {
      open("");
      button.focus();
    });
  }
  byId("veil").addEventListener("click", () => open(""));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && root.dataset.drawer) open("");
  });
  byId("shelf").addEventListener("click", (event) => {
    if (event.target.closest("li button.open, #begin-chat, #add-book")) open("");
  });
}
