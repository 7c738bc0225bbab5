// One step of a method, explained on its own picture: guesses, their check, and what is kept.

let explaining = null; // what lies on the picture meanwhile

/** The lane that shows most, the last of the relaxed methods if there is one. */
function explainable() {
  const others = played().filter(({ data }) => data.id !== "vanilla");
  return others.findLast(({ data }) => data.kinds.includes("r")) ?? others.at(-1) ?? null;
}

/** A step of a lane that shows most: a look-alike among several kept guesses in one row. */
function tellingStep(one) {
  const { committed, kinds } = one.data;
  const worth = (step) => {
    const added = committed[step] - committed[step - 1];
    const alike = kinds.slice(committed[step - 1], committed[step]).includes("r");
    const row = Math.floor(committed[step - 1] / state.grid);
    const inOneRow = Math.floor((committed[step] - 1) / state.grid) === row;
    return added + 4 * alike + 2 * inOneRow - Math.abs(row - state.grid / 2) / state.grid;
  };
  const steps = committed.map((_, step) => step).slice(1);
  return steps.reduce((a, b) => (worth(b) > worth(a) ? b : a), 1);
}

function endExplaining() {
  explaining?.remove();
  explaining = null;
  for (const one of state.lanes) {
    one.shown = -1; // its last pieces are outlined again
    one.root.removeAttribute("data-explained");
  }
}

/** Show the step in four bubbles, one after the other. */
async function explain() {
  const one = explainable();
  if (!one || !(await looks())) return; // with the look come the draft trees
  endExplaining();
  pause();
  const told = words.explain;
  const { data } = one;
  const step = tellingStep(one);
  const [from, to] = [data.committed[step - 1], data.committed[step]];
  const { tokens, parents } = data.trees[step];
  const guesses = tokens.length - 1;
  const { depth } = placed(parents); // places that are guessed
  const alike = data.kinds.slice(from, to).filter((kind) => kind === "r").length;
  const facts = { guesses, depth, kept: to - from - 1, added: to - from };
  const captions = [data.window ? told.guessOwn : told.guess, told.check, told.keep, ...(alike ? [told.alike] : [])];
  const cell = 100 / state.grid;
  const box = (token, kind) => {
    const [x, y] = [token % state.grid, Math.floor(token / state.grid)].map((at) => at * cell);
    const style = `left: ${x}%; top: ${y}%; width: ${cell}%; height: ${cell}%`;
    return el("i", { class: `piece ${kind}`, style });
  };
  const text = el("p", { "aria-live": "polite" });
  const next = el("button", { type: "button" }, told.next);
  const bubble = el("div", { class: "bubble" }, text, next);
  const layer = el("div", { class: "explaining" }, bubble);
  layer.addEventListener("click", (event) => event.stopPropagation());
  layer.addEventListener("keydown", (event) => event.key === "Escape" && close());
  explaining = layer;
  one.picture.after(layer);
  one.root.setAttribute("data-explained", "");
  let at = 0;

  function close() {
    endExplaining();
    go(state.total);
    explainButton.focus({ preventScroll: true });
  }

  function tell() {
    go(data.times[at < 2 ? step - 1 : step]);
    const count = at < 2 ? Math.min(depth, state.grid ** 2 - from) : to - from;
    const pieces = Array.from({ length: count }, (_, i) => from + i);
    layer.querySelectorAll(".piece").forEach((piece) => piece.remove());
    const kept = (token) => (at === 3 && data.kinds[token] === "r" ? "similar" : "kept");
    const kind = (token) => ["guessed", "checked"][at] ?? kept(token);
    layer.prepend(...pieces.map((token) => box(token, kind(token))));
    text.textContent = say(captions[at], facts);
    next.textContent = at + 1 < captions.length ? told.next : told.done;
  }

  next.addEventListener("click", () => {
    at += 1;
    if (at < captions.length) tell();
    else close();
  });
  tell();
  next.focus({ preventScroll: true });
  layer.scrollIntoView({ block: "nearest" });
}
