// A lane: its card with name, place and picture, and its row with a bar, seconds and where they come from.

const PARTS = ["guess", "check", "keep"]; // of a step, and so of a bar

/** Make the elements of a lane. hooks: open(lane, event), hover(lane, event), cut(lane, rows), rest(lane), grid(). `old`: a canvas with the picture before. */
function laneOf(view, hooks, old) {
  const part = (tag, name) => el(tag, { class: name });
  const canvas = el("canvas", { "aria-hidden": "true" });
  const named = say(WORDS.open, { method: view.label });
  const made = { view, data: null, drawn: drawnSoFar(old), shown: -1, canvas };
  made.picture = el("button", { type: "button", class: "picture", "aria-label": named }, canvas);
  made.cut = cutOf(made, hooks);
  made.rest = button("rest", WORDS.rest, (event) => {
    event.stopPropagation();
    hooks.rest(made);
  });
  made.framed = el("div", { class: "framed" }, made.picture, made.cut, made.rest);
  const parts = PARTS.map((name) => part("span", name));
  made.bar = el("div", { class: "bar", "aria-hidden": "true" }, ...parts);
  made.place = part("b", "place");
  for (const name of ["big", "small", "pill", "ran"]) made[name] = part("p", name);
  made.keep = part("span", "keep");
  const name = el("span", { class: "name", "aria-hidden": "true" }, view.label);
  const kind = el("span", { class: "kind" }, view.kind);
  const header = el("header", {}, el("h3", {}, view.label), made.place, kind);
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
    el("div", { class: "lane-card" }, header, made.framed, made.pill, made.keep),
    el("div", { class: "lane-row" }, name, made.bar, made.big, made.small, made.ran),
  );
  made.picture.addEventListener("pointermove", (event) => hooks.hover(made, event));
  made.picture.addEventListener("pointerleave", () => hooks.hover(made, null));
  return made;
}

/** A line over a finished picture, that is dragged or moved by keys: the rows above it are to be kept. */
function cutOf(made, { cut, grid }) {
  const rowsAt = ({ clientY }) => {
    const box = made.canvas.getBoundingClientRect();
    return Math.round(((clientY - box.top) / box.height) * grid());
  };
  const all = { Home: -Infinity, Escape: -Infinity, End: Infinity, PageUp: -4, PageDown: 4 };
  const keys = { ArrowUp: -1, ArrowLeft: -1, ArrowDown: 1, ArrowRight: 1, ...all };
  const line = el("div", {
    class: "cut",
    role: "slider",
    tabindex: "0",
    "aria-orientation": "vertical",
    "aria-label": say(WORDS.cut, { method: made.view.label }),
    title: WORDS.drag,
    "aria-valuemin": "0",
    onclick: (event) => event.stopPropagation(),
    onpointerdown: ({ pointerId }) => line.setPointerCapture(pointerId),
    onpointermove: (event) => {
      if (line.hasPointerCapture(event.pointerId)) cut(made, rowsAt(event));
    },
    onkeydown: (event) => {
      if (!keys[event.key]) return;
      event.preventDefault();
      cut(made, made.rows + keys[event.key]);
    },
  });
  return line;
}

/** Put a lane's line under so many rows. */
function tellCut(one, rows, grid) {
  one.rows = Math.min(grid - 1, Math.max(0, rows));
  one.framed.style.setProperty("--rows", one.rows / grid);
  one.framed.toggleAttribute("data-cut", one.rows > 0);
  one.cut.ariaValueMax = grid - 1;
  one.cut.ariaValueNow = one.rows;
  one.cut.ariaValueText = counting(one.rows, WORDS.rows);
}

function setPill(one, tone, text, why = "") {
  one.pill.dataset.tone = tone;
  one.pill.removeAttribute("data-later");
  if (one.pill.textContent !== text) one.pill.textContent = text;
  one.pill.title = why;
}

/** Show how far a lane is: pieces while it draws, then its place, seconds and what they are made of. */
function tellProgress(one, { committed, total, steps, rank, spent, made }, ended = false) {
  const done = committed === total && !ended; // it may have ended before its picture was decoded
  one.root.toggleAttribute("data-done", done);
  one.root.toggleAttribute("data-first", done && rank === 0);
  setBar(one, [0, committed / total, 0]);
  one.place.textContent = done ? (WORDS.places[rank] ?? "") : "";
  one.big.textContent = done ? spent : counting(committed, WORDS.pieces);
  one.small.textContent = done ? made : say(WORDS.soFar, { total, steps: counted(steps) });
}

/** Give a bar its parts, each a share of the whole width. */
function setBar(one, shares) {
  shares.forEach((share, i) => (one.bar.children[i].style.width = `${100 * share}%`));
}

/** The bar of a race that is over: seconds, on one scale. The pass that reads the prompt is a check. */
function tellSeconds(one, longest) {
  const { data } = one;
  const [guess, keep] = [data.spent.draft, data.spent.keep].map((spent) => spent * data.steps);
  const parts = [guess, took(data) - guess - keep, keep];
  setBar(one, parts.map((spent) => Math.max(0, spent) / longest));
}

/** "= 90 steps x 5.2 ms": so a lane's seconds come about. */
const stepsOf = (lane) =>
  say(WORDS.made, { steps: counted(lane.steps), each: each(lane).toFixed(1) });

/** Show what the server says of a lane that still draws, has arrived, or did not finish. */
function tellLane(one, rank) {
  const { view } = one;
  const ended = ["failed", "stopped"].includes(view.phase);
  one.root.dataset.phase = view.phase;
  const milliseconds = [1000 * view.seconds];
  const made = view.steps ? stepsOf({ ...view, milliseconds }) : "";
  tellProgress(one, { ...view, rank, spent: seconds(milliseconds[0]), made }, ended);
  setPill(one, ended ? "bad" : "none", ended ? view.message : "");
  one.ran.textContent = view.ran;
}

/** What a finished method's speed cost, in one pill. */
function tellCost(one, vanilla) {
  const { data } = one;
  const of = data.total;
  const count = vanilla && data.tokens.filter((token, at) => token !== vanilla.tokens[at]).length;
  if (data.id === "vanilla") setPill(one, "same", WORDS.pills.vanilla);
  else if (!data.lossless) {
    const told = vanilla && !data.shares ? WORDS.pills.own : WORDS.pills.alike;
    setPill(one, "alike", say(told, { count: data.changed, of }));
  } else if (!vanilla) setPill(one, "none", WORDS.pills.exact);
  else if (!data.shares) setPill(one, "none", WORDS.pills.independent);
  else if (count === 0) setPill(one, "same", say(WORDS.pills.same, { of }));
  else setPill(one, "none", say(WORDS.pills.differ, { count, of }), WORDS.pills.rounding);
  one.ran.textContent = data.ran.replace(/ (?=\d)/g, "\u00a0"); // names stay with values
}

/** "1.60x", and the benchmark's range on such a machine. */
function gainOf(data, vanilla) {
  const value = speedup(data, vanilla);
  if (value === null) return "";
  const [low, high] = data.typical?.map((end) => end.toFixed(2)) ?? [];
  const range = low ? say(WORDS.typical, { low, high }) : "";
  return `, ${times(value)}${range}`;
}

/** Show a finished lane at a time of the replay. longest: ms of the slowest lane at the end, else null. */
function tellReplay(one, vanilla, { now, ranks, tell, longest }) {
  const { data } = one;
  const step = stepAt(data, now);
  tellProgress(one, {
    committed: tokensAt(data, now) - data.kept,
    total: data.total,
    steps: Math.max(0, step),
    rank: ranks.get(data.id),
    spent: tell(data),
    made: stepsOf(data) + gainOf(data, vanilla),
  });
  if (longest) tellSeconds(one, longest);
  one.pill.toggleAttribute("data-later", step < data.steps);
}
