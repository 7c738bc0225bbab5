// A step of a method as the panel tells it: its phases, its guesses, and what became of each.

// Guesses that are shown of a step: kept and tried ones up to the first number, and others up to
// the second.
const [MOST, FEW] = [16, 8];

/** The lane that shows most: the last of the relaxed methods, or the last that guesses. */
const tellingLane = (lanes) =>
  lanes.findLast(({ kinds }) => kinds.includes("r")) ??
  lanes.findLast(({ id }) => id !== "vanilla") ??
  lanes[0];

/** A step of a lane that shows most: a look-alike among several kept guesses in one row. */
function tellingStep({ committed, kinds, trees }, grid) {
  const worth = (step) => {
    const added = committed[step] - committed[step - 1];
    const alike = kinds.slice(committed[step - 1], committed[step]).includes("r");
    const row = Math.floor(committed[step - 1] / grid);
    const inOneRow = Math.floor((committed[step] - 1) / grid) === row;
    const dropped = trees[step].path.length < depthOf(trees[step].parents) + 1;
    return added + 4 * alike + 2 * inOneRow + 3 * dropped - Math.abs(row - grid / 2) / grid;
  };
  const steps = committed.map((_, step) => step).slice(1);
  return steps.reduce((a, b) => (worth(b) > worth(a) ? b : a), 1);
}

/** The tokens that a step added -> [first, end, whether the model drew the last one itself]. */
function addedBy(lane, step) {
  const [first, end] = [lane.committed[step - 1] ?? lane.kept, lane.committed[step]];
  return [first, end, step === 0 || end - first === lane.trees[step].path.length];
}

/** What a step is told in: guess, check and keep, or keep alone where nothing was guessed. */
const phasesOf = (lane, step) =>
  step > 0 && lane.trees[step].tokens.length > 1 ? ["guess", "check", "keep"] : ["keep"];

/** The nodes of a step's draft tree that are shown, each behind its parent; 0 is the root. */
function shownNodes({ trees, trials }, step) {
  const { tokens, path } = trees[step];
  const told = new Set([...path, ...trials[step].map(([node]) => node)]);
  const count = Math.min(MOST, Math.max(FEW, told.size - 1));
  return [...new Set([...told, ...tokens.keys()])].slice(0, 1 + count).sort((a, b) => a - b);
}

/**
 * The guesses of a step that are shown, in the order of their places -> node, parent, token, place
 * in the picture, trial (undefined if it was not tried), and fate: kept, alike, dropped or untried.
 */
function guessesOf(lane, step) {
  const { tokens, parents, path } = lane.trees[step];
  const [first, end] = addedBy(lane, step);
  const trials = new Map(lane.trials[step].map((trial) => [trial[0], trial]));
  const places = [first - 1];
  const fateOf = (node) => {
    if (path.includes(node) && places[node] < end)
      return lane.kinds[places[node]] === "r" ? "alike" : "kept";
    return trials.has(node) ? "dropped" : "untried";
  };
  return shownNodes(lane, step)
    .slice(1)
    .map((node) => {
      const parent = parents[node];
      const place = (places[node] = places[parent] + 1);
      const lost = parent > 0 && !path.includes(parent);
      const [token, trial] = [tokens[node], trials.get(node)];
      return { node, parent, token, place, trial, lost, fate: fateOf(node) };
    })
    .filter(({ place }) => place < lane.tokens.length)
    .sort((a, b) => a.place - b.place);
}

/** Of the guesses for each place the one that is drawn there: the kept one, or the first tried. */
function drawnInPlace(guesses) {
  const drawn = new Map();
  for (const { place } of guesses) {
    if (drawn.has(place)) continue;
    const here = guesses.filter((guess) => guess.place === place);
    const above = drawn.get(place - 1)?.node ?? 0;
    const best =
      here.find(({ fate }) => ["kept", "alike"].includes(fate)) ??
      here.find(({ trial }) => trial) ??
      here.find(({ parent }) => parent === above);
    drawn.set(place, best ?? here[0]);
  }
  return [...drawn.values()];
}

/** What became of a guess, in words: with its numbers, where the rule counted probabilities. */
function verdictOf({ trial, fate, lost }, { kept, dropped, lends }) {
  const told = WORDS.verdicts;
  if (!trial) return fate !== "untried" ? kept : lost ? told.lost : told.unneeded;
  const [, own, counted, limit] = trial;
  const passed = fate !== "dropped";
  if (own === undefined) return passed ? kept : dropped;
  const more = counted === own ? "" : lends ? told.lent : told.counted;
  const chance = (p) => (p > 1 ? told.overOne : mass(p));
  return say(passed ? told.kept : told.dropped, {
    own: chance(own),
    more: say(more, { extra: chance(counted - own), counted: chance(counted) }),
    limit: chance(limit),
  });
}

/** A phase of a step in one or two sentences. */
function sentenceOf(lane, step, phase, guesses) {
  const told = WORDS.phases;
  const [first, end, own] = addedBy(lane, step);
  if (step === 0) return lane.kept ? told.firstKept : told.first;
  if (phasesOf(lane, step).length === 1) return lane.id === "vanilla" ? told.alone : told.nothing;
  const { tokens, parents } = lane.trees[step];
  const made = tokens.length - 1;
  if (phase === "guess") {
    const depth = Math.min(depthOf(parents), lane.tokens.length - first);
    const more = shownNodes(lane, step).length < tokens.length ? told.some : "";
    const facts = { guesses: counting(made, told.guesses), places: counting(depth, told.places) };
    return say((lane.window ? told.guessOwn : told.guess) + more, facts);
  }
  if (phase === "check") return `${told.check} ${lane.evidence.decides}`;
  const alike = lane.kinds.slice(first, end).includes("r") ? ` ${told.alike}` : "";
  const facts = { kept: end - first - own, made, added: counting(end - first, told.pieces) };
  return say(own ? told.keep : told.keepLast, facts) + alike;
}

/** How many places a tree guesses ahead. */
function depthOf(parents) {
  const depths = [0];
  for (const parent of parents.slice(1)) depths.push(depths[parent] + 1);
  return Math.max(...depths);
}

/** What the server is asked for a step: the picture's tokens, and the guesses that are shown. */
function askedFor(lane, step) {
  const { tokens, parents } = lane.trees[step];
  const nodes = shownNodes(lane, step);
  const tree = {
    tokens: nodes.map((node) => tokens[node]),
    parents: nodes.map((node) => nodes.indexOf(parents[node])),
    at: addedBy(lane, step)[0] - 1,
  };
  return { tokens: lane.tokens, tree };
}
