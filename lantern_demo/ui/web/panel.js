// The panel that tells a step on the large picture of its lane: its guesses, their check, and what is kept.

const EDGES = { kept: "#4ade80", alike: "#f0a500", dropped: "#f87171", untried: "#cbd5e1", own: "#fff" };
const SIDE = 3; // cells a side of a square that the server decodes around a piece

/** Make the panel. hooks: ask(asked), goTo(lane, step), cover(), closed(). */
function stepPanel(hooks) {
  const button = (name, text, onclick) =>
    el("button", { type: "button", class: name, onclick }, text);
  const large = el("canvas", { class: "large", role: "img", onclick: pick });
  const title = el("h3", { tabindex: "-1" });
  const text = el("p", { class: "told", "aria-live": "polite" });
  const [back, next] = [button("back", WORDS.back, () => move(-1)), button("next", "", () => move(1))];
  const [list, note] = [el("ol", { class: "guesses" }), el("p", { class: "note" })];
  const head = el("header", {}, title, button("close", "\u00d7", close));
  head.lastChild.setAttribute("aria-label", WORDS.close);
  const root = el(
    "section",
    { class: "panel", "aria-label": WORDS.panel, hidden: true, onkeydown: steer },
    head,
    large,
    text,
    el("div", { class: "moves" }, back, next),
    el("div", { class: "below" }, list, note),
  );
  let [view, lane, step, phase, opener] = [null, null, 0, "keep", null];
  let [guesses, strip] = [[], null]; // strip: { image, tree, liked } once the server has decoded it

  /** A run is over. Of the first one the steps come with this script. */
  function set(whole) {
    if (!whole.lanes[0].trees) whole.lanes.forEach((one, i) => Object.assign(one, FIRST[i]));
    view = whole;
  }

  /** Open it at a step of a lane. from: the element that it was opened with. */
  function open(one, at, from) {
    const grows = root.hidden && from.querySelector("canvas")?.getBoundingClientRect();
    opener = from;
    root.hidden = false;
    turn(one, at, phasesOf(one, at)[0]);
    root.scrollIntoView({ block: "nearest" });
    next.focus({ preventScroll: true });
    if (grows && !matchMedia("(prefers-reduced-motion: reduce)").matches) growFrom(grows);
  }

  /** The picture grows out of the lane's. */
  function growFrom(small) {
    const box = large.getBoundingClientRect();
    const moved = `translate(${small.x - box.x}px, ${small.y - box.y}px)`;
    const start = { transform: `${moved} scale(${small.width / box.width})`, transformOrigin: "0 0" };
    large.animate([start, { transform: "none", transformOrigin: "0 0" }], 300);
  }

  function close() {
    if (root.hidden) return;
    const held = root.contains(document.activeElement);
    root.hidden = true;
    lane = null;
    hooks.closed();
    if (held) opener.focus({ preventScroll: true });
  }

  /** Show a phase of a step. */
  function turn(one, at, what) {
    const same = one === lane && at === step;
    [lane, step, phase] = [one, at, what];
    if (!same) {
      guesses = phasesOf(lane, step).length > 1 ? guessesOf(lane, step) : [];
      strip = null;
      note.textContent = "";
      if (guesses.length) ask();
    }
    const steps = lane.committed.length - 1;
    title.textContent = say(WORDS.stepTitle, { method: lane.label, step, steps });
    large.setAttribute("aria-label", title.textContent);
    text.replaceChildren(
      phasesOf(lane, step).length > 1 ? el("b", {}, `${WORDS.names[phase]} `) : "",
      sentenceOf(lane, step, phase, guesses),
    );
    const onward = after(1);
    const comes = onward && onward[0] === step ? onward[1] : "step";
    next.textContent = WORDS.next[comes];
    next.setAttribute("aria-disabled", !onward);
    back.setAttribute("aria-disabled", !after(-1));
    root.dataset.phase = phase;
    hooks.goTo(lane, phase === "keep" ? step : step - 1);
    repaint();
  }

  /** The phase before or after this one -> [step, phase], or null at an end. */
  function after(by) {
    const phases = phasesOf(lane, step);
    const within = phases[phases.indexOf(phase) + by];
    if (within) return [step, within];
    const to = step + by;
    return to < 0 || to >= lane.committed.length ? null : [to, phasesOf(lane, to).at(by > 0 ? 0 : -1)];
  }

  function move(by) {
    const to = after(by);
    if (to) turn(lane, ...to);
  }

  function steer(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") close();
    else if (by) move(by);
    else return;
    event.preventDefault();
  }

  /** A click on a piece shows the step that drew it. */
  function pick(event) {
    const to = stepOf(lane, cellAt(large, view.grid, event));
    turn(lane, to, phasesOf(lane, to)[0]);
  }

  /** Have the guesses of this step decoded. Until then, and where nothing decodes, they are flat colours. */
  async function ask() {
    const [one, at] = [lane, step];
    const { model, prompt, settings } = view;
    const asked = { model, prompt, settings, ...askedFor(lane, step, guesses) };
    const found = await hooks.ask(asked).catch((error) => ({ error: String(error.message ?? error) }));
    const image = new Image();
    if (!found.error) {
      image.src = found.picture;
      await image.decode();
    }
    if (one !== lane || at !== step) return;
    if (found.error) note.textContent = found.error;
    else {
      const nodes = shownNodes(lane.trees[step], lane.trials[step]);
      const squares = new Map(nodes.map((node, i) => [node, found.tree[i]]));
      strip = { image, squares, liked: new Map(asked.cells.map((cell, i) => [cell, found.liked[i]])) };
    }
    repaint();
  }

  /** Where a square around a piece begins, in cells: at the edge of the picture the piece is not in its middle. */
  function cornerOf(place) {
    const within = (at) => Math.min(Math.max(at - 1, 0), view.grid - SIDE);
    return [within(place % view.grid), within(Math.floor(place / view.grid))];
  }

  /** Paint what a token looks like in a place, and what is around it. */
  function paintPiece(g, size, place, token, square) {
    const [column, row] = cornerOf(place);
    const cell = size / SIDE;
    const [x, y] = [((place % view.grid) - column) * cell, (Math.floor(place / view.grid) - row) * cell];
    if (square !== undefined && strip) {
      const side = strip.image.height;
      g.drawImage(strip.image, square * side, 0, side, side, 0, 0, size, size);
    } else if (token === lane.tokens[place] && lane.image) {
      const side = lane.image.width / view.grid;
      g.drawImage(lane.image, column * side, row * side, SIDE * side, SIDE * side, 0, 0, size, size);
    } else {
      g.fillStyle = flatColour(token);
      g.fillRect(x, y, cell, cell);
    }
    return [x, y, cell];
  }

  const flatColour = (token) => colourOf(paletteOf(view.model, repaint), token, lane.colour);

  /** A small picture of a piece in its place, which is outlined. */
  function patch(place, token, square, colour, below) {
    const size = 120;
    const canvas = el("canvas", { width: size, height: size, role: "img" });
    canvas.setAttribute("aria-label", say(WORDS.patch, { token, place: place + 1 }));
    const g = canvas.getContext("2d");
    edge(g, ...paintPiece(g, size, place, token, square), colour);
    return el("figure", {}, canvas, below ? el("figcaption", {}, below) : null);
  }

  function edge(g, x, y, cell, colour, { dashed = false, crossed = false, width = 3 } = {}) {
    const lines = () => {
      g.strokeRect(x + 1, y + 1, cell - 2, cell - 2);
      if (!crossed) return;
      g.beginPath();
      g.moveTo(x, y);
      g.lineTo(x + cell, y + cell);
      g.moveTo(x + cell, y);
      g.lineTo(x, y + cell);
      g.stroke();
    };
    g.save();
    [g.strokeStyle, g.lineWidth] = ["rgba(0, 0, 0, .7)", width + 2];
    lines();
    [g.strokeStyle, g.lineWidth] = [colour, width];
    if (dashed) g.setLineDash([cell / 5, cell / 8]);
    lines();
    g.restore();
  }

  function repaint() {
    if (root.hidden) return;
    const [first, end, own] = addedBy(lane, step);
    paint(large, lane, phase === "keep" ? end : first, view.grid, { cover: hooks.cover(), cell: -1 });
    const g = large.getContext("2d");
    const cell = large.width / view.grid;
    const width = Math.max(2, cell / 10);
    const at = (place) => [(place % view.grid) * cell, Math.floor(place / view.grid) * cell, cell];
    const kept = ({ fate }) => ["kept", "alike"].includes(fate);
    for (const guess of drawnInPlace(guesses)) {
      if (phase === "keep" && !kept(guess)) continue;
      const box = at(guess.place);
      if (phase !== "keep") paintInPlace(g, guess, box);
      const crossed = phase === "check" && guess.fate === "dropped";
      const colour = phase === "guess" ? EDGES.own : EDGES[guess.fate];
      edge(g, ...box, colour, { dashed: phase === "guess" || guess.fate === "untried", crossed, width });
    }
    if (phase === "keep" && own) edge(g, ...at(end - 1), EDGES.own, { width });
    list.replaceChildren(...guesses.map(row), ...(phase === "keep" && own ? [ownRow(end - 1)] : []));
  }

  /** Paint a guess in the large picture, without what is around it. */
  function paintInPlace(g, { node, place, token }, [x, y, cell]) {
    const [column, row] = cornerOf(place);
    g.save();
    g.beginPath();
    g.rect(x, y, cell, cell);
    g.clip();
    g.translate(column * cell, row * cell);
    paintPiece(g, SIDE * cell, place, token, strip?.squares.get(node));
    g.restore();
  }

  /** A guess: its picture, beside a kept look-alike what the model wanted, and what became of it. */
  function row(guess) {
    const { node, place, token, fate } = guess;
    const colour = phase === "guess" ? EDGES.own : EDGES[fate];
    const pieces = [patch(place, token, strip?.squares.get(node), colour)];
    let told = phase === "guess" ? say(WORDS.guessed, { token }) : verdictOf(guess, lane.evidence);
    const wanted = strip?.liked.get(place)?.find(([other]) => other !== token);
    if (phase === "keep" && wanted) {
      const [other, p, square] = wanted;
      pieces[0].append(el("figcaption", {}, WORDS.alike));
      pieces.push(patch(place, other, square, EDGES.own, WORDS.wanted));
      told += ` ${say(WORDS.likes, { p: mass(p) })}`;
    }
    return item(phase === "guess" ? "guess" : fate, place, pieces, told);
  }

  const ownRow = (place) =>
    item("own", place, [patch(place, lane.tokens[place], undefined, EDGES.own)], WORDS.own);

  const item = (kind, place, pieces, told) =>
    el(
      "li",
      { class: kind },
      el("div", {}, ...pieces),
      el("p", {}, el("b", {}, say(WORDS.piece, { place: place + 1 })), ` ${told}`),
    );

  return { root, set, open, close, repaint };
}
