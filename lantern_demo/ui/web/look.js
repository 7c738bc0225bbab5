// A look at a token: why it was accepted, what the guesses look like in its place, and the steps that led there.

function lookPanel(words, hooks) {
  const big = el("canvas", { class: "big", tabindex: "0", role: "application", "aria-roledescription": words.gridRole, onclick: point, onkeydown: steer });
  const picker = el("select", { "aria-label": words.pick, onchange: () => select(lanes[Number(picker.value)], cell) });
  const spoken = el("p", { class: "spoken", "aria-live": "polite" });
  const [about, alike, steps, record, counts] = [el("div", { class: "about" }), el("div", { class: "alike" }), el("div", { class: "steps" }), el("div"), el("div")];
  const root = el("section", { class: "look", "aria-label": words.lookTitle, hidden: true, onkeydown: (event) => event.key === "Escape" && close() },
    el("header", {}, el("h2", {}, words.lookTitle), el("button", { type: "button", class: "close", "aria-label": words.close, onclick: () => close() }, "\u2715")),
    el("div", { class: "look-top" }, el("div", { class: "big-box" }, big), el("div", {}, picker, about)), alike, steps,
    el("details", { class: "record" }, el("summary", {}, words.record), counts, record, el("p", { class: "note" }, words.lookNote)), spoken);
  let [view, lanes, lane, cell, chosen, phase, asking] = [null, [], null, 0, () => {}, null, 0];

  function set(whole, known) {
    const kept = lane && known.find((other) => other.id === lane.id);
    [view, lanes] = [whole, known];
    picker.replaceChildren(...lanes.map((one, i) => el("option", { value: i }, one.label)));
    if (!root.hidden) kept ? select(kept, cell) : close();
  }

  function close() {
    if (root.hidden) return;
    root.hidden = true;
    hooks.closed();
  }

  function show(one, at, then) {
    chosen = then;
    const was = root.hidden;
    root.hidden = false;
    select(one, at);
    if (was) big.focus({ preventScroll: innerWidth >= 1000 });
  }

  function select(one, at) {
    [lane, cell, phase] = [one, at, null];
    picker.value = lanes.indexOf(lane);
    big.setAttribute("aria-label", say(words.gridLabel, { method: lane.label }));
    const story = storyOf(lane, cell, view.grid, words);
    about.replaceChildren(...story.sentences);
    spoken.textContent = `${story.where} ${words.kinds[lane.kinds[cell]]}`;
    counts.replaceChildren(legend(lane, words));
    record.replaceChildren(...story.record);
    alike.replaceChildren(el("p", { class: "note" }, words.patchWait));
    tellSteps();
    chosen(lane, cell);
    clearTimeout(asking);
    asking = setTimeout(ask, 300, lane, cell, story.guesses);
  }

  async function ask(one, at, guesses) {
    const asked = { model: view.model, prompt: view.prompt, settings: view.settings, tokens: one.tokens, cell: at, guesses };
    const found = await hooks.ask(asked).catch((error) => ({ error: String(error.message ?? error) }));
    if (one === lane && at === cell) alike.replaceChildren(...(found.error ? [el("p", { class: "note" }, found.error)] : patches(found, one, at)));
  }

  /** The place with the guesses, their neighbours, and the model's favourites in it. */
  function patches(found, one, at) {
    const square = (token, below, accepted) => el("figure", { class: accepted ? "patch kept" : "patch" },
      el("span", { role: "img", "aria-label": say(words.patchAlt, { token }),
        style: `background-image: url("${found.picture}"); background-size: ${100 * found.tokens.length}% 100%; background-position: ${(100 * found.tokens.indexOf(token)) / Math.max(1, found.tokens.length - 1)}% 0` }),
      below ? el("figcaption", {}, below) : null);
    const row = (title, ...squares) => el("div", { class: "patch-row" }, el("p", {}, title), el("div", {}, ...squares));
    const stands = one.tokens[at];
    const chance = (p) => say(words.chance, { percent: (100 * p).toFixed(p < 0.0995 ? 1 : 0) });
    return [el("h3", {}, words.patchesTitle), found.guesses.some(([guess]) => guess === stands) ? null : row(words.patchKept, square(stands, null, true)),
      ...found.guesses.flatMap(([guess, ...near]) => [row(guess === stands ? words.patchBoth : words.patchGuess, square(guess, null, guess === stands)),
        row(words.patchNear, ...near.map((token) => square(token, null, token === stands)))]),
      found.liked.length ? row(words.patchModel, ...found.liked.map(([token, p]) => square(token, chance(p), token === stands))) : null].filter((part) => part);
  }

  /** Draft, verify, accept: one after the other, and then the next step. */
  function tellSteps() {
    const step = stepOf(lane, cell);
    const next = el("button", { type: "button", class: "next", onclick: onward }, words.next);
    steps.replaceChildren(next);
    const tree = lane.trees[step];
    if (!step || !tree || tree.tokens.length <= 1) return;
    const drawn = treeDrawing(lane, step, ownNode(lane, cell), words);
    drawn.dataset.phase = phase ?? "accept";
    const counts = { draft: tree.tokens.length - 1, verify: 0, accept: lane.committed[step] - lane.committed[step - 1] };
    const refused = lane.judged[step].filter(([node]) => !tree.path.includes(node)).length;
    const judged = phase === "verify" && lane.judged[step].length > 0; // where tries are not kept nobody knows
    if (phase) steps.append(el("p", { "aria-live": "polite" }, say(words.phases[phase], { count: counts[phase] }), judged ? ` ${say(words.phases.refused, { refused })}` : ""));
    steps.append(drawn, el("p", { class: "note" }, words.treeNote));
  }

  function onward() {
    const order = ["draft", "verify", "accept"];
    const step = stepOf(lane, cell);
    if (phase === "accept" || step === 0) {
      const first = lane.rank.indexOf(lane.committed[step]);
      if (first >= 0) select(lane, first);
      phase = "draft";
    } else phase = order[order.indexOf(phase) + 1];
    const now = stepOf(lane, cell);
    hooks.goTo(lane, phase === "accept" ? now : Math.max(0, now - 1));
    tellSteps();
    steps.querySelector(".next").focus({ preventScroll: true });
  }

  function point(event) {
    const box = big.getBoundingClientRect();
    const at = (offset, size) => Math.min(view.grid - 1, Math.max(0, Math.floor((offset / size) * view.grid)));
    select(lane, at(event.clientY - box.top, box.height) * view.grid + at(event.clientX - box.left, box.width));
  }

  function steer(event) {
    const { grid } = view;
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid, ArrowDown: grid, Home: -grid * grid, End: grid * grid }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const to = cell + move;
    if (Math.abs(move) === grid ? to >= 0 && to < grid * grid : true) select(lane, Math.min(grid * grid - 1, Math.max(0, to)));
  }

  const paintBig = (options) => { if (!root.hidden && lane) paint(big, lane, lane.tokens.length, view.grid, { ...options, cell, marks: true }); };
  return { root, set, show, close, paint: paintBig, get open() { return !root.hidden; } };
}
