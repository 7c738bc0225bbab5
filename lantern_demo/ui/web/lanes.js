// A lane: name and place, picture, bar of its pieces, one large number, and what its speed cost.

/** Make the elements of a lane. hooks: open(lane, event), hover(lane, event). `old`: a canvas with the picture before. */
function laneOf(view, hooks, old) {
  const part = (tag, name) => el(tag, { class: name });
  const canvas = el("canvas", { "aria-hidden": "true" });
  const named = say(WORDS.open, { method: view.label });
  const made = { view, data: null, drawn: drawnSoFar(old), shown: -1, canvas };
  made.picture = el("button", { type: "button", class: "picture", "aria-label": named }, canvas);
  made.bar = el("div", { class: "bar", "aria-hidden": "true" }, el("span"));
  made.place = part("b", "place");
  for (const name of ["big", "small", "pill", "ran"]) made[name] = part("p", name);
  made.keep = part("span", "keep");
  made.root = el(
    "article",
    {
      class: "lane",
      id: `lane-${view.name}`,
      style: `--lane: ${view.colour}`,
      "data-method": view.id,
      "aria-label": view.label,
      onclick: (event) => hooks.open(made, event),
    },
    el("header", {}, el("h3", {}, view.label), made.place, el("span", { class: "kind" }, view.kind)),
    made.picture,
    made.bar,
    made.big,
    made.small,
    made.pill,
    made.ran,
    made.keep,
  );
  made.picture.addEventListener("pointermove", (event) => hooks.hover(made, event));
  made.picture.addEventListener("pointerleave", () => hooks.hover(made, null));
  return made;
}

function setPill(one, tone, text, why = "") {
  one.pill.dataset.tone = tone;
  one.pill.removeAttribute("data-later");
  one.pill.textContent = text;
  one.pill.title = why;
}

/** Show how far a lane is: painted pieces, or once it is done its steps and its place. */
function tellProgress(one, { committed, total, steps, rank, facts }) {
  const done = committed === total;
  one.root.toggleAttribute("data-done", done);
  one.root.toggleAttribute("data-first", done && rank === 0);
  one.bar.style.setProperty("--share", `${(100 * committed) / total}%`);
  one.place.textContent = done ? (WORDS.places[rank] ?? "") : "";
  one.big.textContent = done ? counted(steps) : counting(committed, WORDS.pieces);
  const soFar = say(WORDS.soFar, { total, steps: counted(steps) });
  one.small.replaceChildren(...(done ? facts : [soFar]));
}

/** Show what the server says of a lane that still draws, has arrived, or did not finish. */
function tellLane(one, rank) {
  const { view } = one;
  const ended = ["failed", "stopped"].includes(view.phase);
  one.root.dataset.phase = view.phase;
  tellProgress(one, { ...view, rank, facts: [seconds(1000 * view.seconds)] });
  setPill(one, ended ? "bad" : "none", ended ? view.message : "");
  one.ran.textContent = view.ran;
}

/** What a finished method's speed cost, in one pill. */
function tellCost(one, vanilla) {
  const { data } = one;
  const of = data.tokens.length;
  const count = vanilla && data.tokens.filter((token, at) => token !== vanilla.tokens[at]).length;
  if (data.id === "vanilla") setPill(one, "same", WORDS.pills.vanilla);
  else if (!data.lossless)
    setPill(one, "alike", say(WORDS.pills.alike, { count: data.changed, of }), WORDS.pills.own);
  else if (!vanilla) setPill(one, "none", WORDS.pills.exact);
  else if (!data.shares) setPill(one, "none", WORDS.pills.independent);
  else if (count === 0) setPill(one, "same", say(WORDS.pills.same, { of }));
  else setPill(one, "none", say(WORDS.pills.differ, { count, of }), WORDS.pills.rounding);
  one.ran.textContent = data.ran.replace(/ (?=\d)/g, "\u00a0"); // names stay with values
}

/** Show a finished lane at a time of the replay. `here`: it was drawn on this machine just now. */
function tellReplay(one, vanilla, { now, ranks, here }) {
  const { data } = one;
  const step = stepAt(data, now);
  const value = speedup(data, vanilla);
  const spent = seconds(took(data));
  const place = el("span", { class: "here" }, here ? WORDS.here : ""); // a phone has no room for it
  const gained = value === null ? [] : [ratio(value), place, ", "];
  tellProgress(one, {
    committed: tokensAt(data, now),
    total: data.committed.at(-1),
    steps: Math.max(0, step),
    rank: ranks.get(data.id),
    facts: [...gained, spent],
  });
  one.pill.toggleAttribute("data-later", step < data.steps);
}
