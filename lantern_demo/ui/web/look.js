// A look at a token: what it is and why, what the drafts look like in its place, and the steps that led there.

/** Make the panel in a `root` that opens. hooks: ask(asked), chosen(lane, cell), goTo(lane, step). */
function lookPanel(root, hooks) {
  const big = el("canvas", {
    class: "big",
    tabindex: "0",
    role: "application",
    "aria-roledescription": WORDS.gridRole,
    onclick: (event) => select(lane, cellAt(big, view.grid, event)),
    onkeydown: steer,
  });
  const picker = el("select", {
    "aria-label": WORDS.pick,
    onchange: () => select(lanes[Number(picker.value)], cell),
  });
  const [title, spoken] = [el("h3"), el("p", { class: "spoken", "aria-live": "polite" })];
  const [about, alike, steps, record, counts] = [
    el("div", { class: "about" }),
    el("div", { class: "alike" }),
    el("div", { class: "steps" }),
    el("div"),
    el("div"),
  ];
  root.append(
    el(
      "div",
      { class: "look-columns" },
      el("div", {}, picker, big, counts, el("p", { class: "note" }, WORDS.lookNote)),
      el("div", {}, title, about, alike),
      el(
        "div",
        {},
        steps,
        el("details", { class: "record" }, el("summary", {}, WORDS.record), record),
      ),
    ),
    spoken,
  );
  let [view, lanes, lane, cell, phase, asking] = [null, [], null, 0, null, 0];
  let pictured = null; // the answer that has the pictures of a tree, and whose tree: { lane, step, found }

  function set(whole, known) {
    if (!whole.lanes[0].trees) whole.lanes.forEach((one, i) => Object.assign(one, FIRST[i]));
    const kept = lane && known.find((other) => other.id === lane.id);
    [view, lanes, pictured] = [whole, whole.lanes.filter((one) => known.includes(one)), null];
    picker.replaceChildren(...lanes.map((one, i) => el("option", { value: i }, one.label)));
    if (!root.open || !lane) return;
    if (kept) select(kept, cell);
    else root.open = false;
  }

  function show(one, at) {
    root.open = true;
    select(one, at);
    big.focus({ preventScroll: true });
    root.scrollIntoView({ block: "nearest" });
  }

  function select(one, at) {
    [lane, cell, phase] = [one, at, null];
    picker.value = lanes.indexOf(lane);
    big.setAttribute("aria-label", say(WORDS.gridLabel, { method: lane.label }));
    const story = storyOf(lane, cell, view.grid);
    about.replaceChildren(...story.sentences);
    title.textContent = story.heading;
    spoken.textContent = `${story.where} ${story.heading}`;
    counts.replaceChildren(legend(lane));
    record.replaceChildren(...story.record);
    alike.replaceChildren(el("p", { class: "note" }, WORDS.patchWait));
    tellSteps();
    hooks.chosen(lane, cell);
    clearTimeout(asking);
    asking = setTimeout(ask, 300, lane, cell, story.drafts);
  }

  async function ask(one, at, drafts) {
    const step = stepOf(one, at);
    const asked = {
      model: view.model,
      prompt: view.prompt,
      settings: view.settings,
      tokens: one.tokens,
      cell: at,
      drafts,
      beside: drawnByVanilla(one, at),
      tree: wanting(one, step),
    };
    const found = await hooks
      .ask(asked)
      .catch((error) => ({ error: String(error.message ?? error) }));
    if (one !== lane || at !== cell) return;
    alike.replaceChildren(
      ...(found.error ? [el("p", { class: "note" }, found.error)] : patches(found, one, at)),
    );
    if (!found.tree) return;
    pictured = { lane, step, found };
    steps.querySelector(".tree-box")?.replaceWith(treeBox(step));
  }

  /** The token that vanilla's lane has in a cell, as a list; an empty one where there is none to set beside a lane's own. */
  const drawnByVanilla = (one, at) =>
    lanes
      .filter((other) => other !== one && other.id === "vanilla")
      .map((other) => other.tokens[at]);

  const known = (step) =>
    pictured?.lane === lane && pictured.step === step ? pictured.found : null;

  /** The draft tree of a step that pictures are asked for, or null: where there is none, it is too large, or they are there. */
  function wanting(one, step) {
    const size = one.trees[step].tokens.length;
    if (!step || size <= 1 || size > PICTURED || known(step)) return null;
    const { tokens, parents, at } = wholeTree(one, step);
    return { tokens, parents, at };
  }

  /** The place with what vanilla drew there, the drafts, their neighbours, and the model's favourites in it. */
  function patches(found, one, at) {
    const square = (token, below, accepted) =>
      el(
        "figure",
        { class: accepted ? "patch kept" : "patch" },
        el("span", {
          role: "img",
          "aria-label": say(WORDS.patchAlt, { token }),
          style: `background-image: url("${found.picture}"); background-size: ${100 * found.squares}% 100%; background-position: ${(100 * found.tokens.indexOf(token)) / Math.max(1, found.squares - 1)}% 0`,
        }),
        below ? el("figcaption", {}, below) : null,
      );
    const row = (title, ...squares) =>
      el("div", { class: "patch-row" }, el("p", {}, title), el("div", {}, ...squares));
    const stands = one.tokens[at];
    const chance = (p) => say(WORDS.chance, { percent: (100 * p).toFixed(p < 0.0995 ? 1 : 0) });
    return [
      el("h4", {}, WORDS.patchesTitle),
      found.drafts.some(([draft]) => draft === stands)
        ? null
        : row(WORDS.patchKept, square(stands, null, true)),
      ...drawnByVanilla(one, at).map((token) =>
        row(WORDS.patchVanilla, square(token, null, token === stands)),
      ),
      ...found.drafts.flatMap(([draft, ...near]) => [
        row(
          draft === stands ? WORDS.patchBoth : WORDS.patchDraft,
          square(draft, null, draft === stands),
        ),
        row(WORDS.patchNear, ...near.map((token) => square(token, null, token === stands))),
      ]),
      found.liked.length
        ? row(
            WORDS.patchModel,
            ...found.liked.map(([token, p]) => square(token, chance(p), token === stands)),
          )
        : null,
    ].filter((part) => part);
  }

  /** The draft tree of a step, and what is to be known for reading it. */
  function treeBox(step) {
    const found = known(step);
    const drawn = treeDrawing(lane, step, ownNode(lane, cell), found);
    drawn.dataset.phase = phase ?? "accept";
    return el(
      "div",
      { class: "tree-box" },
      drawn,
      el(
        "div",
        {},
        el("p", { class: "note" }, `${WORDS.treeNote} ${found ? WORDS.treePictures : ""}`),
        treeLegend(),
      ),
    );
  }

  /** Draft, verify, accept: one after the other, and then the next step. */
  function tellSteps() {
    const step = stepOf(lane, cell);
    const next = el("button", { type: "button", class: "next", onclick: onward }, WORDS.next[coming()]);
    steps.replaceChildren(next);
    const tree = lane.trees[step];
    if (!step || !tree || tree.tokens.length <= 1) return;
    const counts = {
      draft: tree.tokens.length - 1,
      verify: 0,
      accept: lane.committed[step] - lane.committed[step - 1],
    };
    const refused = lane.trials[step].filter(([, verdict]) => verdict === "refused").length;
    const tried = phase === "verify" && lane.trials[step].length > 0; // where trials are not kept nobody knows
    if (phase)
      steps.append(
        el(
          "p",
          { "aria-live": "polite" },
          say(WORDS.phases[phase === "accept" && counts.accept === 1 ? "acceptOne" : phase], {
            count: counts[phase],
          }),
          tried ? ` ${say(WORDS.phases.refused, { refused })}` : "",
        ),
      );
    steps.append(treeBox(step));
  }

  /** The part of a step that is shown next. */
  function coming() {
    const order = ["draft", "verify", "accept"];
    return stepOf(lane, cell) === 0 ? "draft" : order[(order.indexOf(phase) + 1) % 3];
  }

  function onward() {
    const then = coming();
    const step = stepOf(lane, cell);
    if (phase === "accept" || step === 0) {
      const first = lane.committed[step];
      if (first < lane.kinds.length) select(lane, first);
    }
    phase = then;
    const now = stepOf(lane, cell);
    hooks.goTo(lane, phase === "accept" ? now : Math.max(0, now - 1));
    tellSteps();
    steps.querySelector(".next").focus({ preventScroll: true });
  }

  function steer(event) {
    const { grid } = view;
    const end = grid * grid - 1;
    const to = {
      ArrowLeft: cell - 1,
      ArrowRight: cell + 1,
      ArrowUp: cell - grid,
      ArrowDown: cell + grid,
      Home: 0,
      End: end,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    if (to >= 0 && to <= end) select(lane, to);
  }

  function repaint() {
    if (root.open && lane) paint(big, lane, lane.tokens.length, view.grid, { cell, marks: true });
  }

  return { set, show, repaint };
}
