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

function treeDrawing(lane, step, own, words) {
  const tree = lane.trees[step];
  // The model's own token hangs below the last accepted guess, unless the picture ended before it.
  const whole = lane.committed[step] - lane.committed[step - 1] >= tree.path.length;
  const bonus = tree.tokens.length;
  const { places, width, depth } = placed(whole ? [...tree.parents, tree.path.at(-1)] : tree.parents);
  const small = bonus <= 16;
  const [across, down, radius] = small ? [58, 56, 17] : [17, 44, 6];
  const path = new Set(tree.path);
  const tried = new Set(lane.judged[step].map(([node]) => node));
  const x = (node) => 34 + places[node].x * across;
  const y = (node) => 24 + places[node].depth * down;
  const [wide, high] = [68 + (width - 1) * across, 48 + depth * down];
  const drawing = svg("svg", { viewBox: `0 0 ${wide} ${high}`, class: "tree", style: `max-width: ${Math.min(wide * 1.25, 560)}px` });
  tree.parents.forEach((parent, node) => {
    if (node) drawing.append(svg("line", { x1: x(parent), y1: y(parent), x2: x(node), y2: y(node), class: path.has(node) ? "taken" : "" }));
  });
  if (whole) {
    const [end, half] = [tree.path.at(-1), small ? 21 : 6];
    drawing.append(svg("line", { x1: x(end), y1: y(end), x2: x(bonus), y2: y(bonus), class: "taken own" }),
      svg("rect", { x: x(bonus) - half, y: y(bonus) - (small ? 14 : 6), width: 2 * half, height: small ? 28 : 12, rx: 4, class: `target${own < 0 ? " chosen" : ""}` }));
    if (small) drawing.append(svg("text", { x: x(bonus), y: y(bonus) + 4 }, String(lane.tokens[lane.committed[step] - 1])));
  }
  tree.tokens.forEach((token, node) => {
    const state = node === 0 ? "root" : path.has(node) ? "accepted" : tried.has(node) ? "refused" : "untried";
    const group = svg("g", { class: `node ${state}${node === own ? " chosen" : ""}` }, svg("title", {}, `${words.draft} ${token}: ${words.states[state]}`));
    group.append(svg("circle", { cx: x(node), cy: y(node), r: radius }));
    if (small) group.append(svg("text", { x: x(node), y: y(node) + 4 }, String(token)));
    if (state === "refused") {
      const reach = radius * 0.72;
      for (const turn of [1, -1]) group.append(svg("line", { class: "cross", x1: x(node) - reach, x2: x(node) + reach, y1: y(node) - turn * reach, y2: y(node) + turn * reach }));
    }
    drawing.append(group);
  });
  const taken = tree.path.slice(1).map((node) => tree.tokens[node]);
  const told = say(words.treeTold, { nodes: tree.tokens.length, path: taken.length ? taken.join(", ") : words.none });
  return fill(drawing, { role: "img", "aria-label": told }, []);
}

/**
 * What a window held for a token, from the first pass that guessed it to the one that committed it: [{ token, passes }], where passes in a
 * row with the same guess are one. Node 0 of a window is the last token before it, and node i the guess i places further on.
 */
function guessesOf(lane, token) {
  const guesses = [];
  for (let step = stepOf(lane, token); step > 0; step--) {
    const node = token - lane.committed[step - 1] + 1;
    if (node >= lane.trees[step].tokens.length) break;
    const guess = lane.trees[step].tokens[node];
    if (guesses[0]?.token === guess) guesses[0].passes += 1;
    else guesses.unshift({ token: guess, passes: 1 });
  }
  return guesses;
}

/** Give the lanes with windows a tint for each token: the opacity 0 where the guess never changed, 0.75 where it changed most of all. */
function tintGuesses(lanes) {
  const changes = lanes.map((lane) => lane.tokens.map((_, token) => Math.max(0, guessesOf(lane, token).length - 1)));
  const most = Math.max(1, ...changes.flat());
  lanes.forEach((lane, i) => { lane.tints = changes[i].map((count) => (0.75 * count) / most); });
}

/** How a token was guessed before it was committed, in words. */
function guessHistory(lane, token, words) {
  const guesses = guessesOf(lane, token);
  if (!guesses.length) return words.neverGuessed;
  const last = guesses.at(-1);
  const times = guesses.length === 1 ? words.guessedOnce
    : say(words.guessedOften, { count: guesses.length, chain: guesses.map((guess) => guess.token).join(" \u2192 ") });
  const stood = last.passes === 1 ? words.stoodOnce : say(words.stood, { passes: last.passes });
  const end = lane.kinds[token] === "t" ? say(words.guessRefused, { token: lane.tokens[token] }) : words.guessAccepted;
  return `${times} ${stood} ${end}`;
}

function bound(lane, p) {
  if (lane.rule.kind === "additive") return lane.rule.bound;
  return lane.rule.kind === "multiplicative" ? (lane.rule.bound - 1) * p : 0;
}

/** One draft that was tried: its bar against the mark that it had to exceed, the numbers, and the verdict in words. */
function trial(lane, step, [node, p, near, height], own, words) {
  const tree = lane.trees[step];
  const place = tree.path.indexOf(node);
  const relaxed = place > 0 && (lane.kinds[lane.committed[step - 1] + place - 1] ?? (near ? "r" : "e")) === "r";
  const verdict = place < 0 ? "refused" : relaxed ? "relaxed" : "exact";
  const top = Math.max(p + near, height, 1e-6) * 1.12;
  const at = (value) => `${(100 * value) / top}%`;
  const bars = el("div", { class: "balance", "aria-hidden": "true" },
    el("span", { class: "own", style: `width: ${at(p)}` }), el("span", { class: "near", style: `left: ${at(p)}; width: ${at(near)}` }),
    el("span", { class: "height", style: `left: ${at(height)}` }));
  const limit = lane.rule.kind === "exact" ? null : say(words.bound[lane.rule.kind], { value: mass(bound(lane, p)), bound: lane.rule.bound, k: lane.rule.k });
  const numbers = el("dl", {}, el("dt", {}, words.p), el("dd", {}, mass(p)));
  if (lane.rule.kind !== "exact") numbers.append(el("dt", {}, words.near), el("dd", {}, verdict === "exact" ? words.notNeeded : mass(near)));
  if (limit) numbers.append(el("dt", {}, words.limit), el("dd", {}, limit));
  numbers.append(el("dt", {}, lane.greedy ? words.heightGreedy : words.height), el("dd", {}, mass(height)));
  return el("li", { class: `trial ${verdict}${node === own ? " chosen" : ""}` },
    el("p", { class: "verdict" }, el("b", {}, `${words.draft} ${tree.tokens[node]}`), ` ${words.verdicts[verdict]}`), bars, numbers);
}

/** The accepted node of a token in its step's tree; -1 for one that the model drew itself. */
function ownNode(lane, token) {
  const step = stepOf(lane, token);
  const place = lane.rank[token] - (step ? lane.committed[step - 1] : 0);
  const { path } = lane.trees[step];
  return place < path.length - 1 ? path[place + 1] : -1;
}

/** The guesses that were tried for a token, in that order; where tries were not kept, the one that was accepted. */
function triedFor(lane, token) {
  const step = stepOf(lane, token);
  const tree = lane.trees[step];
  const parent = tree.path[lane.rank[token] - (step ? lane.committed[step - 1] : 0)];
  const tried = lane.judged[step].map(([node]) => node).filter((node) => tree.parents[node] === parent);
  const own = ownNode(lane, token);
  return [...new Set((tried.length || own < 0 ? tried : [own]).map((node) => tree.tokens[node]))];
}

/** A token's price in words: rounded down, or it would not be "at least". */
function priceOf(price, words) {
  const of = price >= 0.01 ? 100 : 10000;
  return say(words.tokenPrice, { price: price.toFixed(3), of: of.toLocaleString("en"), count: Math.floor(of * price + 1e-9) });
}

/** All about a token: where it is, sentences for everybody, what is kept of it for the record, and the guesses tried for it. */
function storyOf(lane, token, grid, words) {
  const step = stepOf(lane, token);
  const before = step ? lane.committed[step - 1] : 0;
  const tree = lane.trees[step];
  const took = lane.milliseconds[step] - (step ? lane.milliseconds[step - 1] : 0);
  const kind = lane.kinds[token];
  const guesses = step ? triedFor(lane, token) : [];
  const where = say(words.tokenAt, { token: token + 1, row: Math.floor(token / grid) + 1, column: (token % grid) + 1 });
  const offered = step > 0 && tree.parents.some((parent, node) => node > 0 && parent === tree.path[lane.rank[token] - before]);
  const because = words.because[step === 0 ? "first" : kind === "t" && offered ? "refused" : kind];
  const price = lane.prices?.[token];
  const priced = typeof price !== "number" ? null : price < words.rounding ? words.tokenFree : priceOf(price, words);
  const missing = lane.wave && step ? lane.rank.slice(0, token).filter((rank) => rank >= before).length : 0;
  const sentences = [el("p", { class: "kind" }, sign(kind), el("b", {}, words.kinds[kind])), el("p", {}, missing ? say(words.sideBySide, { missing }) : because), priced ? el("p", { class: "token-price" }, priced) : null].filter((part) => part);
  const record = [el("p", {}, `${lane.label}. ${where}`), el("p", {}, lane.sentence), el("p", {}, lane.said)];
  if (step === 0) return { where, sentences, guesses, record: [...record, el("p", {}, say(words.prefill, { ms: took.toFixed(1) }))] };
  record.push(el("p", {}, say(words.step, { step, steps: lane.committed.length - 1, tokens: lane.committed[step] - before, ms: took.toFixed(1) })));
  if (lane.window) record.push(el("p", { class: "guessed" }, guessHistory(lane, token, words)));
  if (!lane.wave && tree.tokens.length <= 1) record.push(el("p", { class: "note" }, words.noDrafts));
  else if (lane.judged[step].length) {
    record.push(el("ol", { class: "trials" }, ...lane.judged[step].map((judged) => trial(lane, step, judged, ownNode(lane, token), words))), el("p", { class: "note" }, words.balanceNote));
  } else if (!lane.wave) record.push(el("p", { class: "note" }, words.notKept));
  return { where, sentences, guesses, record };
}
