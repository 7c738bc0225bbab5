// What happened at one token: its step, the draft tree of that step, and every draft that was tried there.

/** Draft trees are drawn from the top: children below their parents, and each subtree in a strip of its own. */
function placed(parents) {
  const children = parents.map(() => []);
  parents.forEach((parent, node) => node && children[parent].push(node));
  const places = [];
  let next = 0;
  const visit = (node, depth) => {
    const below = children[node].map((child) => visit(child, depth + 1));
    const x = below.length ? (below[0] + below.at(-1)) / 2 : next++;
    places[node] = { x, depth };
    return x;
  };
  visit(0, 0);
  return { places, width: next, depth: Math.max(...places.map((p) => p.depth)) };
}

const PICTURED = 16; // nodes of a tree that is drawn large enough for pictures

/**
 * The draft tree of a step with the model's own token below the last accepted draft, unless the picture ended before it -> tokens, parents,
 * `at`: the root's place in the picture, and `own`: the node of the model's own token, or -1.
 */
function wholeTree(lane, step) {
  const { tokens, parents, path } = lane.trees[step];
  const [before, after] = [lane.committed[step - 1], lane.committed[step]];
  if (after - before < path.length) return { tokens, parents, at: before - 1, own: -1 };
  return {
    tokens: [...tokens, lane.tokens[after - 1]],
    parents: [...parents, path.at(-1)],
    at: before - 1,
    own: tokens.length,
  };
}

/** One node of a tree as it is drawn: a circle for a draft, with a cross where it was refused; a box for a token that is none. */
function nodeDrawing(x, y, radius, state, ...inside) {
  const shape = ["root", "target"].includes(state)
    ? svg("rect", {
        class: "shape",
        x: x - radius,
        y: y - radius,
        width: 2 * radius,
        height: 2 * radius,
        rx: 4,
      })
    : svg("circle", { class: "shape", cx: x, cy: y, r: radius });
  const drawn = svg("g", { class: `node ${state}` }, shape, ...inside);
  if (state === "refused") {
    const reach = radius * 0.72;
    const cross = `M ${x - reach} ${y - reach} L ${x + reach} ${y + reach} M ${x - reach} ${y + reach} L ${x + reach} ${y - reach}`;
    drawn.append(
      svg("path", { class: "cross under", d: cross }),
      svg("path", { class: "cross", d: cross }),
    );
  }
  return drawn;
}

/** Squares of a strip of `found.squares` as fills of the shapes that name them: the picture with each node's drafts in their places. */
function treeSquares(found) {
  const strip = svg("image", {
    id: "tree-strip",
    href: found.picture,
    width: found.squares,
    height: 1,
    preserveAspectRatio: "none",
  });
  const used = new Set(found.tree.filter((square) => square !== null));
  return svg(
    "defs",
    {},
    strip,
    ...[...used].map((square) =>
      svg(
        "pattern",
        {
          id: `tree-square-${square}`,
          width: 1,
          height: 1,
          viewBox: `${square} 0 1 1`,
          preserveAspectRatio: "none",
        },
        svg("use", { href: "#tree-strip" }),
      ),
    ),
  );
}

/** The draft tree of a step, with pictures of its nodes where `found` has them. own: the chosen node, or -1. */
function treeDrawing(lane, step, own, found) {
  const tree = lane.trees[step];
  const whole = wholeTree(lane, step);
  const { places, width, depth } = placed(whole.parents);
  const large = tree.tokens.length <= PICTURED;
  const [across, down, radius] = large ? [60, 62, 21] : [17, 44, 6];
  const [path, tried] = [new Set(tree.path), new Set(lane.trials[step].map(([node]) => node))];
  const chosen = own < 0 ? whole.own : own;
  const x = (node) => 34 + places[node].x * across;
  const y = (node) => 28 + places[node].depth * down;
  const [wide, high] = [68 + (width - 1) * across, 56 + depth * down];
  const kept = tree.path.slice(1).map((node) => tree.tokens[node]);
  const told = { nodes: tree.tokens.length, path: kept.join(", ") || WORDS.none };
  const drawing = svg(
    "svg",
    {
      viewBox: `0 0 ${wide} ${high}`,
      class: "tree",
      role: "img",
      "aria-label": say(WORDS.treeTold, told),
      style: `width: ${Math.min(wide * 1.25, 560)}px`,
    },
    found ? treeSquares(found) : null,
  );
  whole.parents.forEach((parent, node) => {
    const kind = node === whole.own ? "taken own" : path.has(node) ? "taken" : "";
    if (node)
      drawing.append(
        svg("line", { x1: x(parent), y1: y(parent), x2: x(node), y2: y(node), class: kind }),
      );
  });
  const stateOf = (node) => {
    if (node === whole.own) return "target";
    if (node === 0) return "root";
    if (path.has(node)) return "accepted";
    return tried.has(node) ? "refused" : "untried";
  };
  whole.tokens.forEach((token, node) => {
    const state = stateOf(node);
    const drawn = nodeDrawing(
      x(node),
      y(node),
      radius,
      state,
      svg("title", {}, say(WORDS.treeNode, { token, state: WORDS.treeSigns[state] })),
    );
    const square = found?.tree[node] ?? null;
    if (square !== null) drawn.firstChild.style.fill = `url(#tree-square-${square})`;
    drawn.classList.toggle("chosen", node === chosen);
    drawing.append(drawn);
  });
  return drawing;
}

/** What the rings, crosses and boxes of the drawing mean. */
function treeLegend() {
  const signs = Object.entries(WORDS.treeSigns).map(([state, meaning]) => {
    const drawn = nodeDrawing(12, 12, 9, state);
    return el(
      "li",
      {},
      svg("svg", { viewBox: "0 0 24 24", width: 24, "aria-hidden": "true" }, drawn),
      meaning,
    );
  });
  return el("ul", { class: "tree-signs" }, ...signs);
}

/**
 * What a window held for a token, from the first pass that drafted it to the one that committed it: [{ token, passes }], where passes in a
 * row with the same draft are one. Node 0 of a window is the last token before it, and node i the draft i places further on.
 */
function draftsOf(lane, token) {
  const drafts = [];
  for (let step = stepOf(lane, token); step > 0; step--) {
    const node = token - lane.committed[step - 1] + 1;
    if (node >= lane.trees[step].tokens.length) break;
    const draft = lane.trees[step].tokens[node];
    if (drafts[0]?.token === draft) drafts[0].passes += 1;
    else drafts.unshift({ token: draft, passes: 1 });
  }
  return drafts;
}

/** How a token was drafted before it was committed, in words. */
function draftHistory(lane, token) {
  const drafts = draftsOf(lane, token);
  if (!drafts.length) return WORDS.neverDrafted;
  const last = drafts.at(-1);
  const times =
    drafts.length === 1
      ? WORDS.draftedOnce
      : say(WORDS.draftedOften, {
          count: drafts.length,
          chain: drafts.map((draft) => draft.token).join(" \u2192 "),
        });
  const stood = last.passes === 1 ? WORDS.stoodOnce : say(WORDS.stood, { passes: last.passes });
  const end =
    lane.kinds[token] === "t"
      ? say(WORDS.draftRefused, { token: lane.tokens[token] })
      : WORDS.draftAccepted;
  return `${times} ${stood} ${end}`;
}

/** The drafts that were tried in a step. Their bars have one scale, which ends at 1: a limit may be larger. */
function trialsOf(lane, step, chosen) {
  const tried = lane.trials[step];
  const most = Math.max(...tried.flatMap(([, , ...told]) => told), 1e-6);
  const top = Math.min(most, 1) * 1.12;
  return el("ol", { class: "trials" }, ...tried.map((one) => trial(lane, step, one, chosen, top)));
}

/** A draft's bar against the line that it had to pass, and its numbers, which `numbers` labels. */
function balance([own, counted, limit], numbers, top) {
  const at = (value) => `${(100 * Math.min(value, 1)) / top}%`;
  const solid = Math.min(own, counted);
  const bars = el(
    "div",
    { class: "balance", "aria-hidden": "true" },
    el("span", { class: "own", style: `width: ${at(solid)}` }),
    el("span", { class: "near", style: `left: ${at(solid)}; width: ${at(counted - solid)}` }),
    el("span", { class: "height", style: `left: ${at(limit)}` }),
  );
  const chance = (p) => (p > 1 ? WORDS.overOne : mass(p));
  const values = {
    own: chance(own),
    counted: chance(counted),
    extra: chance(counted - own),
    limit: chance(limit),
  };
  return [
    bars,
    el(
      "dl",
      {},
      ...numbers.flatMap(([label, value]) => [
        el("dt", {}, label),
        el("dd", {}, say(value, values)),
      ]),
    ),
  ];
}

/** One draft that was tried: the verdict in words, and where there are numbers, these; all by the rule's words. */
function trial(lane, step, [node, kind, ...told], chosen, top) {
  const { numbers } = lane.evidence.cases[kind];
  return el(
    "li",
    { class: `trial ${kind}${node === chosen ? " chosen" : ""}` },
    verdict(lane, step, [node, kind, ...told]),
    ...(numbers.length ? balance(told, numbers, top) : []),
  );
}

/** What became of a draft, in the rule's words. */
function verdict(lane, step, [node, kind, ...told]) {
  return el(
    "p",
    { class: "verdict" },
    el("b", {}, `${WORDS.draft} ${lane.trees[step].tokens[node]}`),
    ` ${say(lane.evidence.cases[kind].said, told)}`,
  );
}

/** The step that committed a token, the draft tree of that step, and the token's place among those that it added. */
function arrival(lane, token) {
  const step = stepOf(lane, token);
  return { step, tree: lane.trees[step], place: token - (lane.committed[step - 1] ?? 0) };
}

/** The accepted node of a token in its step's tree; -1 for one that the model drew itself. */
function ownNode(lane, token) {
  const { tree, place } = arrival(lane, token);
  return tree.path[place + 1] ?? -1;
}

/** The trials of a token's own drafts, in their order. */
function triesFor(lane, token) {
  const { step, tree, place } = arrival(lane, token);
  return lane.trials[step].filter(([node]) => tree.parents[node] === tree.path[place]);
}

/** The drafts that were tried for a token; where tries were not kept, the one that was accepted. */
function triedFor(lane, token) {
  const { tree } = arrival(lane, token);
  const tried = triesFor(lane, token).map(([node]) => node);
  const own = ownNode(lane, token);
  return [...new Set((tried.length || own < 0 ? tried : [own]).map((node) => tree.tokens[node]))];
}

/** What is known of the drafts of a step. */
function draftsTold(lane, step, chosen) {
  const note = (told) => el("p", { class: "note" }, told);
  if (lane.trees[step].tokens.length <= 1) return [note(WORDS.noDrafts)];
  if (!lane.trials[step].length) return [note(WORDS.notKept)];
  return [trialsOf(lane, step, chosen), lane.evidence.note ? note(lane.evidence.note) : ""];
}

/** All about a token: where it is, sentences with the rule that decided, what is kept for the record, and the drafts tried for it. */
function storyOf(lane, token, grid) {
  const { step, tree, place } = arrival(lane, token);
  const kind = lane.kinds[token];
  const drafts = triedFor(lane, token);
  const where = say(WORDS.tokenAt, {
    token: token + 1,
    row: Math.floor(token / grid) + 1,
    column: (token % grid) + 1,
  });
  const offered = tree.parents.some((parent, node) => node > 0 && parent === tree.path[place]);
  const because =
    lane.evidence.because[step === 0 ? "first" : kind === "t" && offered ? "refused" : kind];
  const heading = say(WORDS.heading, { what: lane.evidence.headings[kind] });
  const sentences = [
    el("p", { class: "kind" }, sign(kind), WORDS.kinds[kind]),
    el("p", {}, because),
    ...triesFor(lane, token).map((tried) => verdict(lane, step, tried)),
  ];
  if (drafts.length && lane.evidence.rule)
    sentences.push(el("p", { class: "rule" }, lane.evidence.rule));
  const tokens = lane.committed[step] - (lane.committed[step - 1] ?? 0);
  const ms = (lane.milliseconds[step] - (lane.milliseconds[step - 1] ?? 0)).toFixed(1);
  const steps = lane.committed.length - 1;
  const timing = step === 0 ? WORDS.prefill : tokens === 1 ? WORDS.stepOne : WORDS.step;
  const record = [where, lane.said, say(timing, { step, steps, tokens, ms })]
    .filter((told) => told)
    .map((told) => el("p", {}, told));
  if (step > 0 && lane.window) record.push(el("p", {}, draftHistory(lane, token)));
  if (step > 0) record.push(...draftsTold(lane, step, ownNode(lane, token)));
  return { where, heading, sentences, drafts, record };
}
