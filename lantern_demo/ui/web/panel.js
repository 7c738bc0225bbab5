// The panel that tells a step on the large picture of its lane: guesses, their check, what is kept.

const LATER = 2000; // ms until a busy device is asked again
const EDGES = {
  guess: "#ffffff",
  own: "#ffffff",
  kept: "#4ade80",
  alike: "#f0a500",
  dropped: "#f87171",
  untried: "#cbd5e1",
};

// the marks of what is in the picture, as on the lanes
const MARKS = { kept: "e", alike: "r", own: "t" };

/** Make the panel. `look` asks the server for pictures of guesses. */
function stepPanel(look) {
  const large = el("canvas", { class: "large", role: "img", onclick: pick });
  const title = el("h3");
  const text = el("p", { class: "told", "aria-live": "polite" });
  const back = button("back", WORDS.back, () => move(-1));
  const next = button("next", "", () => move(1));
  const tree = el("div", { class: "tree" });
  const list = el("ol", { class: "guesses" });
  const note = el("p", { class: "note" });
  // A click anywhere in it leaves it the keys.
  const keys = { tabindex: "-1", onkeydown: steer };
  const root = el(
    "section",
    { class: "panel", "aria-label": WORDS.panel, ...keys },
    title,
    large,
    el("div", { class: "moves" }, back, next),
    text,
    el("div", { class: "below" }, tree, list, note, el("p", { class: "hint" }, WORDS.hint)),
  );
  let [view, lane, step, phase] = [null, null, 0, "keep"];
  let pressed; // the piece whose step was asked for, while that step is told
  let [guesses, asking] = [[], 0];
  let strip = null; // the pictures of this step's guesses, once the server has decoded them

  /** Tell a step of a run that is over, one that shows most. Of the first run the steps come with this script. */
  function set(whole) {
    if (!whole.lanes[0].trees) whole.lanes.forEach((one, i) => Object.assign(one, FIRST[i]));
    view = whole;
    tell();
  }

  /** Tell the step that drew a piece of a lane; without them, one that shows most. */
  function tell(one = tellingLane(view.lanes), cell) {
    const at = cell === undefined ? tellingStep(one, view.grid) : stepOf(one, cell);
    pressed = cell;
    turn(one, at, phasesOf(one, at)[0]);
  }

  /** The same for a visitor who asked for it. */
  function open(one, cell) {
    tell(one, cell);
    const boxes = [root, large, text].map((part) => part.getBoundingClientRect());
    const below = boxes.slice(1).some(({ bottom }) => bottom > innerHeight);
    if (boxes[0].top < 0 || below) root.scrollIntoView({ block: "start" });
    next.focus({ preventScroll: true });
  }

  /** Show a phase of a step. */
  function turn(one, at, what) {
    const same = one === lane && at === step;
    if (pressed !== undefined && stepOf(one, pressed) !== at) pressed = undefined;
    [lane, step, phase] = [one, at, what];
    const phases = phasesOf(lane, step);
    if (!same) {
      guesses = phases.length > 1 ? guessesOf(lane, step) : [];
      strip = null;
      note.textContent = "";
      clearTimeout(asking); // whoever steps on quickly asks for the last step alone
      if (guesses.length) asking = setTimeout(ask, 200);
    }
    title.textContent = say(WORDS.stepTitle, { method: lane.label, step, steps: lane.steps });
    large.setAttribute("aria-label", title.textContent);
    text.replaceChildren(
      phases.length > 1 ? el("b", {}, `${WORDS.names[phase]} `) : "",
      sentenceOf(lane, step, phase, guesses),
    );
    const onward = after(1);
    next.textContent = WORDS.next[onward?.[0] === step ? onward[1] : "step"];
    next.setAttribute("aria-disabled", !onward);
    back.setAttribute("aria-disabled", !after(-1));
    root.dataset.phase = phase;
    repaint();
  }

  /** The phase before or after this one -> [step, phase], or null at an end. */
  function after(by) {
    const phases = phasesOf(lane, step);
    const within = phases[phases.indexOf(phase) + by];
    if (within) return [step, within];
    const to = step + by;
    if (to < 0 || to > lane.steps) return null;
    return [to, phasesOf(lane, to).at(by > 0 ? 0 : -1)];
  }

  function move(by) {
    const to = after(by);
    if (to) turn(lane, ...to);
  }

  function steer(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    move(by);
    event.preventDefault();
  }

  /** A click on a piece shows the step that drew it. */
  function pick(event) {
    tell(lane, cellAt(large, view.grid, event));
  }

  /** Have the guesses decoded. Until then, and where nothing decodes, they are their own patches. */
  async function ask() {
    const [one, at] = [lane, step];
    // Gradio answers nothing where it could not ask.
    const found = (await look({ model: view.model, ...askedFor(lane, step) })) ?? { later: true };
    if (one !== lane || at !== step) return;
    note.textContent = found.error ?? "";
    if (found.later) asking = setTimeout(ask, LATER);
    if (!found.picture) return;
    const picture = await imageAt(found.picture);
    if (one !== lane || at !== step) return;
    strip = picture;
    const nodes = shownNodes(lane, step);
    for (const guess of guesses) guess.square = found.tree[nodes.indexOf(guess.node)];
    repaint();
  }

  const source = () => ({
    lane,
    grid: view.grid,
    strip,
    looks: () => looksOf(view.model, lane.colour, repaint),
  });

  /** How a guess looks now: before its check all are alike. */
  const lookOf = ({ fate }) => (phase === "guess" ? "guess" : fate);

  function repaint() {
    const { grid } = view;
    const [first, end, own] = addedBy(lane, step);
    const keeping = phase === "keep";
    paint(large, lane, keeping ? end : first, grid, { cover: coverColour() });
    const g = large.getContext("2d");
    const cell = large.width / grid;
    const width = Math.max(2, cell / 10);
    const boxOf = (place) => [...cellCorner(place, grid, cell), cell];
    for (const guess of drawnInPlace(guesses)) {
      if (keeping && guess.place >= end) continue;
      const [box, look] = [boxOf(guess.place), lookOf(guess)];
      if (keeping && !["kept", "alike"].includes(look)) continue;
      if (!keeping) paintInPlace(g, guess, box, source());
      const dashed = ["guess", "untried"].includes(look);
      outline(g, box, { colour: EDGES[look], width, dashed, crossed: look === "dropped" });
    }
    const drawn = keeping && own ? [{ place: end - 1, token: lane.tokens[end - 1] }] : [];
    for (const { place } of drawn) outline(g, boxOf(place), { colour: EDGES.own, width });
    if (pressed !== undefined) lightCell(g, ...boxOf(pressed));
    tree.replaceChildren(guesses.length ? treeOf(guesses, lookOf) : "");
    list.replaceChildren(...guesses.map(guessRow), ...drawn.map(ownRow));
  }

  /** A guess, and what became of it. */
  function guessRow(guess) {
    const told = phase === "guess" ? say(WORDS.guessed, guess) : verdictOf(guess, lane.evidence);
    return row(lookOf(guess), guess, told);
  }

  const ownRow = (piece) => row("own", piece, WORDS.own);

  function row(look, piece, told) {
    const name = el("b", {}, say(WORDS.piece, { place: piece.place + 1 }));
    const current = piece.place === pressed && "true";
    const picture = patch(piece, source(), EDGES[look]);
    const mark = MARKS[look] ? markOf(MARKS[look]) : "";
    const words = el("p", {}, mark, name, ` ${told}`);
    return el("li", { class: look, "aria-current": current }, picture, words);
  }

  return { root, set, open, repaint };
}
