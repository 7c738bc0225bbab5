// The clocks of a replay: passes of the model, or this machine's seconds. Step 0 reads the prompt.

const REPLAY_SECONDS = 6; // what a replay takes on either clock

const counted = (steps) => say(steps === 1 ? WORDS.pass : WORDS.passes, { steps });

/** The clocks: the `times` of a lane's steps, and how a time reads, alone and of a total. */
const CLOCKS = {
  passes: { times: (lane) => lane.committed.map((_, step) => step), read: (now) => counted(Math.round(now)), readOf: (now, total) => `${Math.floor(now)} / ${Math.round(total)}` },
  seconds: { times: (lane) => lane.milliseconds, read: seconds, readOf: (now, total) => `${(now / 1000).toFixed(2)} / ${seconds(total)}` },
};

/** Who was first on a clock, and how that is on the other one -> [headline, the line below it]. */
function verdict(lanes, kind, words) {
  const spent = (lane) => lane.milliseconds.at(-1);
  const gain = ({ speedup }) => times(Math.max(speedup, 1 / speedup));
  const vanilla = lanes.find((lane) => lane.id === "vanilla");
  const fewest = lanes.reduce((best, lane) => (lane.steps < best.steps ? lane : best));
  const alone = fewest.tokens.length - 1;
  const facts = { method: fewest.label, passes: fewest.steps, alone };
  const cost = ({ changed, tokens }) => (changed ? say(words.headlines.cost, { changed, of: tokens.length }) : words.headlines.noCost);
  const other = fewest !== vanilla && fewest.speedup !== null; // there are two clocks to compare
  if (kind === "passes") {
    const found = fewest.steps < alone ? (lanes.length > 1 ? "passes" : "only") : "noFewer";
    const story = say(words.headlines[found], { ...facts, times: times(alone / fewest.steps), cost: cost(fewest) });
    return [story, other ? say(words.why[fewest.speedup >= 1 ? "faster" : "slower"], { times: gain(fewest) }) : ""];
  }
  const best = lanes.filter((lane) => lane !== vanilla).sort((a, b) => spent(a) - spent(b))[0] ?? vanilla;
  const found = !vanilla || best === vanilla ? "alone" : best.speedup >= 1 ? "faster" : "slower";
  const story = say(words.headlines[found], { method: best.label, took: seconds(spent(best)), alone: vanilla && seconds(spent(vanilla)), times: gain(best), cost: cost(best) });
  return [story, other ? say(words.why.passes, facts) : ""];
}
