// A first minute: four captions on a race that stands still, at a step of a method that changed tokens. Escape or Skip ends it.

/** Where to look: a changed token in a step that added three tokens, where there is one, next to the middle of the picture. */
function tellingStep(data, grid) {
  const added = (token) => data.committed[stepOf(data, token)] - data.committed[stepOf(data, token) - 1];
  const loose = changedTokens(data, grid);
  return loose.find((token) => added(token) === 3) ?? loose[0];
}

function tour({ lanes, grid, root, open, ended }) {
  const words = WORDS.tour;
  const loose = lanes.filter(({ kinds }) => kinds.includes("r"));
  const data = loose.find(({ id }) => id === "lantern++") ?? loose[0];
  document.querySelector(".tour")?.remove();
  const cell = tellingStep(data, grid);
  const step = stepOf(data, cell);
  const facts = { method: data.label, drafts: data.trees[step].tokens.length - 1, added: data.committed[step] - data.committed[step - 1], changed: data.changed, of: data.tokens.length };
  const told = el("p", { class: "told", tabindex: "-1" });
  const next = el("button", { type: "button", class: "first" });
  const skip = el("button", { type: "button", onclick: end }, words.skip);
  const count = el("small");
  const box = el("section", { class: "tour", role: "dialog", "aria-label": words.title }, told, el("div", {}, skip, count, next));
  const stops = ["tree-box", "tree-box", "alike", "tree-box"]; // parts of the look, by the names that the styles have for them
  let at = -1;

  function onto() {
    at += 1;
    if (at === stops.length) return end();
    const part = stops[at];
    // A look's own button goes through the phases of a step: draft, verify, accept.
    if (part === "tree-box") root.querySelector(".next")?.click();
    root.dataset.pointed = part;
    root.querySelector(`.${part}`)?.scrollIntoView({ block: "nearest" });
    told.textContent = say(words.captions[at], facts);
    count.textContent = say(words.count, { number: at + 1, of: stops.length });
    next.textContent = at + 1 < stops.length ? words.next : words.done;
    told.focus({ preventScroll: true });
  }

  function end() {
    document.removeEventListener("keydown", leave, true);
    box.remove();
    delete root.dataset.pointed;
    ended();
  }

  function leave(event) {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    end();
  }

  next.addEventListener("click", onto);
  document.addEventListener("keydown", leave, true);
  open(data, cell);
  document.body.append(box);
  onto();
}
