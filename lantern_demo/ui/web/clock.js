// The clocks of a replay: steps of the model, or seconds of this machine. Step 0 reads the prompt.

const REPLAY_SECONDS = 5; // what a replay takes on either clock

const CLOCKS = {
  steps: (lane) => lane.committed.map((_, step) => step),
  seconds: (lane) => lane.milliseconds,
};
const counted = (steps) => say(steps === 1 ? WORDS.oneStep : WORDS.someSteps, { steps });
/** What a lane has spent on a clock, in words. */
const spent = { steps: (now) => counted(Math.floor(now)), seconds };

const last = (list) => list[list.length - 1];
/** How many times as much vanilla spends as a lane does; null without vanilla. */
function gain(lane, vanilla, kind) {
  if (!vanilla || lane === vanilla) return null;
  return last(CLOCKS[kind](vanilla)) / last(CLOCKS[kind](lane));
}

/** "2.60x", or how much slower. */
const ratio = (value) =>
  value < 0.995 ? say(WORDS.slower, { times: times(1 / value) }) : times(value);

/** The sentence over a race that is over: [before the number, the number, after it]. */
function headlineOf(lanes, kind) {
  const words = WORDS.headlines;
  const end = (lane) => last(CLOCKS[kind](lane));
  const vanilla = lanes.find((lane) => lane.id === "vanilla");
  const best = lanes.reduce((a, b) => (end(b) < end(a) ? b : a));
  const number = spent[kind](end(best));
  if (!vanilla || lanes.length === 1)
    return [say(words.alone, { method: best.label }), number, "."];
  if (best === vanilla) return [words.vanilla, number, "."];
  const other = kind === "steps" ? String(end(vanilla)) : seconds(end(vanilla));
  return [words.before, number, say(words.after, { other })];
}

/** The same while it is replayed: how far it is. */
function headlineAt(now, total, kind) {
  const words = WORDS.headlines;
  if (kind === "steps")
    return [words.at, String(Math.floor(now)), say(words.of, { total: Math.round(total) })];
  return [words.atSeconds, (now / 1000).toFixed(2), say(words.of, { total: seconds(total) })];
}

/** Why seconds gain less than steps, in numbers of the method that took the fewest steps; a warning where other programs disturbed them. */
function reason(lanes) {
  if (lanes.some((lane) => lane.disturbed)) return WORDS.disturbed;
  const vanilla = lanes.find((lane) => lane.id === "vanilla");
  const others = lanes.filter((lane) => lane !== vanilla && lane.steps < (vanilla?.steps ?? 0));
  if (!vanilla || !others.length) return "";
  const best = others.reduce((a, b) => (b.steps < a.steps ? b : a));
  const whole = ({ draft, check, keep }) => draft + check + keep;
  const ms = (value) => value.toFixed(1);
  const fast = gain(best, vanilla, "seconds");
  return say(WORDS.reason, {
    draft: ms(best.spent.draft),
    check: ms(best.spent.check),
    keep: ms(best.spent.keep),
    method: best.label,
    steps: best.steps,
    other: vanilla.steps,
    grown: (whole(best.spent) / whole(vanilla.spent)).toFixed(1),
    own: ms(whole(best.spent)),
    one: ms(whole(vanilla.spent)),
    fast: fast < 0.995 ? ratio(fast) : say(WORDS.asFast, { times: times(fast) }),
  });
}
