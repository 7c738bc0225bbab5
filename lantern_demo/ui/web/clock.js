// The clocks of a replay: passes of the model, with a price for each further guess in a pass, or this machine's seconds. What happened is
// what the record says; only how long it is said to take is chosen.

/** How many nodes a step had beside its first: guesses, or, where rows are drawn side by side, the tokens of the other rows. Step 0 reads
 * the prompt. */
const guessesIn = (lane) => lane.trees.map((tree, step) => (step ? Math.max(tree.tokens.length, lane.committed[step] - lane.committed[step - 1]) - 1 : 0));

const sum = (list) => list.reduce((whole, part) => whole + part, 0);

/**
 * What one more guess cost in a run, in passes of vanilla: drafted, checked and decided, `whole`, and of that the check alone, `check`.
 * `shares`: what it cost each method, by id, over the mean. Null without vanilla, or without guesses.
 */
function costOfGuess(lanes) {
  const vanilla = lanes.find((lane) => lane.id === "vanilla");
  if (!vanilla) return null;
  const pass = (vanilla.milliseconds.at(-1) - vanilla.milliseconds[0]) / (vanilla.milliseconds.length - 1);
  const checked = (1000 * vanilla.verify) / vanilla.steps;
  const known = lanes.map((lane) => ({
    lane,
    guesses: sum(guessesIn(lane)),
    more: lane.milliseconds.at(-1) - lane.milliseconds[0] - pass * (lane.milliseconds.length - 1),
    checks: 1000 * lane.verify - checked * lane.steps,
  })).filter(({ guesses }) => guesses);
  const guesses = sum(known.map((one) => one.guesses));
  const whole = sum(known.map((one) => one.more)) / (pass * guesses);
  if (!(whole > 0)) return null;
  const shares = Object.fromEntries(known.map((one) => [one.lane.id, Math.max(0, one.more / (pass * one.guesses * whole))]));
  return { whole, check: Math.max(0, sum(known.map((one) => one.checks)) / (pass * guesses)), shares };
}

/** When each step of a lane is done, in passes: a pass each, and `cost` of one for every guess, as the method's share of it was here. */
function passTimes(lane, cost, measured) {
  const each = cost * (measured?.shares[lane.id] ?? 1);
  let now = 0;
  return guessesIn(lane).map((guesses, step) => (now += step ? 1 + each * guesses : 0));
}

/** A clock: `times` of a lane, how its numbers read, and how many of its units a replay shows in a second at its own pace. */
function machineClock(total) {
  return { kind: "seconds", times: (lane) => lane.milliseconds, read: seconds, readOf: (now) => `${(now / 1000).toFixed(2)} / ${seconds(total)}`, natural: 1000, total };
}

function passClock(cost, measured, total) {
  const read = (passes) => say(cost ? WORDS.passesTime : passes === 1 ? WORDS.pass : WORDS.passes, { steps: Math.round(passes) });
  const readOf = (now) => `${Math.round(now)} / ${Math.round(total)}`;
  return { kind: "passes", cost, times: (lane) => passTimes(lane, cost, measured), read, readOf, natural: total / REPLAY_SECONDS, total };
}

const REPLAY_SECONDS = 6; // what a replay on the clock of passes takes

/** How fast a run is played at first: as it was, or slower if it would be over before anybody has seen it. */
function gentle(clock) {
  if (clock.kind === "passes" || clock.total >= 2 * clock.natural) return 1;
  return [1 / 2, 1 / 4, 1 / 8, 1 / 16].find((speed) => clock.total / (speed * clock.natural) >= 4) ?? 1 / 16;
}
