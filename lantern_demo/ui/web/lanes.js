// A lane: name, picture, bar of time, one large number, and what the method's speed cost.

/** Make the elements of a lane. hooks: open(lane, event), hover(lane, event). */
function laneOf(view, hooks) {
  const part = (tag, name) => el(tag, { class: name });
  const canvas = el("canvas", { "aria-hidden": "true" });
  const named = say(WORDS.open, { method: view.label });
  const made = { view, data: null, drawn: drawnSoFar(), shown: -1, canvas };
  made.picture = el("button", { type: "button", class: "picture", "aria-label": named }, canvas);
  made.bar = el("div", { class: "bar", "aria-hidden": "true" }, el("span"));
  for (const name of ["big", "place"]) made[name] = part("b", name);
  for (const name of ["small", "pill", "ran"]) made[name] = part("p", name);
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
    el("header", {}, el("h3", {}, view.label), el("span", { class: "kind" }, view.kind)),
    made.picture,
    made.bar,
    el("p", { class: "score" }, made.big, made.place),
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

/** Show what the server says of a lane that still draws, or did not finish. */
function tellLane(one, slowest) {
  const { view } = one;
  const ended = ["failed", "stopped"].includes(view.phase);
  one.root.dataset.phase = view.phase;
  one.root.removeAttribute("data-done");
  one.root.removeAttribute("data-first");
  one.place.textContent = "";
  one.big.textContent = view.committed ? seconds(1000 * view.seconds) : "\u2013";
  one.small.textContent = view.committed ? counted(view.steps) : "";
  one.bar.style.setProperty("--share", `${slowest ? (100 * view.seconds) / slowest : 0}%`);
  setPill(one, ended ? "bad" : "none", ended ? view.message : say(WORDS.pieces, view));
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
  one.ran.textContent = [
    data.shares || !vanilla || data.id === "vanilla" ? "" : WORDS.pills.other,
    data.ran,
  ]
    .filter((text) => text)
    .join(" \u00b7 ")
    .replace(/ (?=\d)/g, "\u00a0"); // names stay with values
}

/** Show a finished lane at a time of the clock. */
function tellScore(one, vanilla, { kind, now, arrived }) {
  const { data } = one;
  const end = last(data.times);
  const done = now >= end;
  const rank = arrived.findIndex((other) => last(other.data.times) === end); // equal ones share it
  const step = Math.max(0, countUpTo(data.times, now) - 1);
  const value = gain(data, vanilla, kind);
  one.root.toggleAttribute("data-done", done);
  one.pill.toggleAttribute("data-later", !done);
  one.root.toggleAttribute("data-first", done && rank === 0 && arrived.length > 1);
  const place = done && arrived.length > 1 ? (WORDS.places[rank] ?? "") : "";
  const fewer = done && kind === "steps" && value > 1 ? el("span", {}, WORDS.fewer) : "";
  one.place.replaceChildren(fewer, fewer && place ? " " : "", place);
  one.big.textContent = done && value !== null ? ratio(value) : spent[kind](Math.min(now, end));
  one.big.toggleAttribute("data-slow", done && value !== null && value < 0.995);
  const spentHere = seconds(data.milliseconds[step]);
  const slow = done && kind === "steps" && (gain(data, vanilla, "seconds") ?? 1) < 0.995;
  const facts = [counted(step), slow ? say(WORDS.slow, { seconds: spentHere }) : spentHere];
  if (!done || value === null) facts.splice(kind === "steps" ? 0 : 1, 1);
  const told = facts.map((fact, i) => el("span", {}, fact, facts[i + 1] ? " \u00b7 " : ""));
  one.small.replaceChildren(...told);
}
