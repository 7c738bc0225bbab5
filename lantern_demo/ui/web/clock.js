// A race in words. Its clock is each method's own decode time: who needs the least arrives first.

const REPLAY_SECONDS = 5; // what a replay takes
const AHEAD = 1.1; // how much faster than the leader another lane must be to lead

const counted = (steps) => counting(steps, WORDS.steps);
const took = ({ milliseconds }) => milliseconds.at(-1);
const sooner = (a, b) => Number(a.toFixed(2)) < Number(b.toFixed(2)); // seconds, as they are shown

/** How many times as fast a lane is as vanilla on this machine; null without vanilla. */
function speedup(lane, vanilla) {
  if (!vanilla || lane === vanilla) return null;
  return took(vanilla) / took(lane);
}

/** "1.60x faster", or how much slower. */
function ratio(value) {
  if (Math.abs(value - 1) < 0.005) return WORDS.asFast;
  const [told, gain] = value < 1 ? [WORDS.slower, 1 / value] : [WORDS.faster, value];
  return say(told, { times: times(gain) });
}

/** The ranks by seconds of lanes that are done, as far as no lane that draws can still take them. */
function ranksOf(views) {
  if (views.length === 1) return new Map();
  const done = views.filter((one) => one.phase === "done");
  const open = views.filter((one) => ["waiting", "drawing"].includes(one.phase));
  const sure = done.filter((one) => !open.some((other) => sooner(other.seconds, one.seconds)));
  const ahead = (one) => done.filter((other) => sooner(other.seconds, one.seconds)).length;
  return new Map(sure.map((one) => [one.id, ahead(one)]));
}

/** The sentence over a race that is over: [before the number, the number, after it]. */
function headlineOf(lanes) {
  const words = WORDS.headlines;
  const vanilla = lanes.find((lane) => lane.id === "vanilla");
  const [best] = [...lanes].sort((a, b) => a.steps - b.steps || took(a) - took(b));
  const first = lanes.reduce((a, b) => (took(b) < took(a) ? b : a));
  const than = (lane, other) =>
    vanilla && lane !== vanilla ? say(words.vanilla, { other: other(vanilla) }) : ".";
  const spent = (lane) => seconds(took(lane));
  if (lanes.length > 1 && (best === vanilla || sooner(took(first) / 1000, took(best) / 1000)))
    return [say(words.fastest, { method: first.label }), spent(first), than(first, spent)];
  const steps = than(best, (lane) => lane.steps);
  return [say(words.took, { method: best.label }), counted(best.steps), steps];
}

/** Who leads at equal decode time, once each lane has a tenth of its picture, else null. The leader
 * `before`, an id, stays until another is clearly faster: live, lanes have their time in slices. */
function leaderOf(lanes, before) {
  if (lanes.some(({ committed, total }) => committed < total / 10)) return null;
  const rate = ({ committed, seconds }) => committed / seconds;
  const best = lanes.reduce((a, b) => (rate(b) > rate(a) ? b : a));
  const old = lanes.find(({ id }) => id === before) ?? best;
  return best.committed >= old.committed && rate(best) > AHEAD * rate(old) ? best : old;
}

/** The sentence while lanes are drawn, live or in a replay: who is done, or who leads. */
function headlineAt(lanes, leader) {
  const words = WORDS.headlines;
  const done = lanes.filter((one) => one.phase === "done" && one.committed === one.total);
  const vanilla = lanes.find((lane) => lane.id === "vanilla");
  if (done.length) {
    const first = done.reduce((a, b) => (b.seconds < a.seconds ? b : a));
    const rest = vanilla && !done.includes(vanilla) ? say(words.behind, vanilla) : ".";
    return [say(words.arrived, { method: first.label }), counted(first.steps), rest, "more"];
  }
  if (!leader) return [words.begins, "", ""];
  const told = say(lanes.length > 1 ? words.leads : words.draws, { method: leader.label });
  return [told, String(leader.committed), say(words.of, leader)];
}

/** Why a lane gains less in seconds than in steps, in numbers of the method with the fewest steps; and whether other programs ran. */
function reason(lanes) {
  const disturbed = lanes.some((lane) => lane.disturbed) ? ` ${WORDS.disturbed}` : "";
  const vanilla = lanes.find((lane) => lane.id === "vanilla");
  const others = lanes.filter((lane) => lane !== vanilla && lane.steps < (vanilla?.steps ?? 0));
  if (!vanilla || !others.length) return disturbed.trim();
  const best = others.reduce((a, b) => (b.steps < a.steps ? b : a));
  const whole = ({ draft, check, keep }) => draft + check + keep;
  const told = say(WORDS.reason, {
    method: best.label,
    steps: best.steps,
    other: vanilla.steps,
    grown: (whole(best.spent) / whole(vanilla.spent)).toFixed(1),
    fast: ratio(speedup(best, vanilla)),
  });
  return told + disturbed;
}
