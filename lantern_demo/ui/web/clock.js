// A race in words. Its clock is each method's own decode time: who needs the least arrives first.

const REPLAY_SECONDS = 5; // what a replay takes
const AHEAD = 1.1; // how much faster than the leader another lane must be to lead

const counted = (steps) => counting(steps, WORDS.steps);
const took = ({ milliseconds }) => milliseconds.at(-1);
/** Whether one time in seconds is a millisecond or more before another: what is nearer is a tie. */
const sooner = (a, b) => Math.round(1e5 * (b - a)) >= 100;
const before = (a, b) => sooner(took(a) / 1000, took(b) / 1000);
const fastest = (lanes) => lanes.reduce((a, b) => (took(b) < took(a) ? b : a));
const listed = (lanes) => new Intl.ListFormat("en").format(lanes.map(({ label }) => label));

/** How many times as fast a lane is as vanilla on this machine; null without vanilla. */
function speedup(lane, vanilla) {
  if (!vanilla || lane === vanilla) return null;
  return took(vanilla) / took(lane);
}

/** How the seconds of a race are written: with a third digit where two would look like a tie. */
function secondsOf(lanes) {
  const alike = (a, b) => seconds(took(a)) === seconds(took(b)) && before(a, b);
  const digits = lanes.some((a) => lanes.some((b) => alike(a, b))) ? 3 : 2;
  return (lane) => seconds(took(lane), digits);
}

/** Milliseconds of a step, so that steps times these are the lane's seconds. */
const each = (lane) => took(lane) / lane.steps;

/** The ranks by seconds of lanes that are done, as far as no lane that draws, or was stopped, could take them. */
function ranksOf(views) {
  if (views.length === 1) return new Map();
  const done = views.filter((one) => one.phase === "done");
  const open = views.filter((one) => ["waiting", "drawing", "stopped"].includes(one.phase));
  const sure = done.filter((one) => !open.some((other) => sooner(other.seconds, one.seconds)));
  const ahead = (one) => done.filter((other) => sooner(other.seconds, one.seconds)).length;
  return new Map(sure.map((one) => [one.id, ahead(one)]));
}

/** The sentence over a race that is over: [before the winner's seconds, these, after them]. Nobody
 * won where a lane was `stopped`. Beside other programs the speedup is told with one
 * digit. */
function headlineOf(lanes, stopped = false) {
  const words = WORDS.headlines;
  const tell = secondsOf(lanes);
  const first = fastest(lanes);
  const won = lanes.filter((lane) => !before(first, lane));
  const rest = lanes.filter((lane) => !won.includes(lane));
  const vanilla = rest.find(({ id }) => id === "vanilla");
  const other = vanilla ?? (rest.length ? fastest(rest) : null);
  const raced = won.length > 1 ? words.tie : words.won;
  const begins = lanes.length > 1 && !stopped ? raced : words.took;
  const faster = speedup(first, vanilla);
  const unsure = lanes.some(({ disturbed }) => disturbed);
  const told = { gain: times(faster ?? 1, unsure ? 1 : 2) };
  const gain = faster === null ? "" : say(unsure ? words.about : words.gain, told);
  const than = other ? say(words.than, { method: other.label, seconds: tell(other), gain }) : ".";
  return [say(begins, { method: listed(won) }), tell(first), than];
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
  const done = lanes.filter(({ committed, total }) => committed === total); // decoded or not
  const vanilla = lanes.find((lane) => lane.id === "vanilla");
  if (done.length) {
    const first = done.reduce((a, b) => (b.seconds < a.seconds ? b : a));
    const rest = vanilla && !done.includes(vanilla) ? say(words.behind, vanilla) : ".";
    const spent = seconds(1000 * first.seconds);
    return [say(words.arrived, { method: first.label }), spent, rest, "more"];
  }
  if (!leader) return [words.begins, "", ""];
  // Another one may have more pieces, and not be so much faster that it leads.
  const more = (one) => one.committed > leader.committed && one.seconds <= leader.seconds;
  const level = [leader, ...lanes.filter(more)];
  const told = level.length > 1 ? words.level : lanes.length > 1 ? words.leads : words.draws;
  const names = { method: leader.label, methods: listed(level) };
  return [say(told, names), String(leader.committed), say(words.of, leader)];
}

/** Why the fastest method won or lost here, in numbers of this run; empty where a lane was `stopped`,
 * since nobody won then. */
function reason(lanes, stopped) {
  const words = WORDS.reason;
  const vanilla = lanes.find((lane) => lane.id === "vanilla");
  const others = lanes.filter((lane) => lane !== vanilla);
  if (stopped || !vanilla || !others.length) return "";
  const best = fastest(others);
  const rivals = lanes.filter((lane) => lane !== best);
  const begins = before(vanilla, best)
    ? words.lost
    : rivals.every((lane) => before(best, lane))
      ? words.won
      : words.tied;
  const facts = {
    method: best.label,
    pieces: (vanilla.steps / best.steps).toFixed(2),
    dear: (each(best) / each(vanilla)).toFixed(2),
    gain: times(speedup(best, vanilla)),
  };
  return say(`${begins} ${words.numbers}`, facts);
}
