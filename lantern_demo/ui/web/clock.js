// The clocks of a replay: passes of the model, or this machine's seconds. Step 0 reads the prompt.

/** A clock: `times` of a lane, how its numbers read, and how many of its units a replay shows in a second at its own pace. */
function machineClock(total) {
  return { kind: "seconds", times: (lane) => lane.milliseconds, read: seconds, readOf: (now) => `${(now / 1000).toFixed(2)} / ${seconds(total)}`, natural: 1000, total };
}

function passClock(total) {
  const read = (passes) => counted(Math.round(passes));
  const readOf = (now) => `${Math.round(now)} / ${Math.round(total)}`;
  return { kind: "passes", times: (lane) => lane.committed.map((_, step) => step), read, readOf, natural: total / REPLAY_SECONDS, total };
}

const counted = (steps) => say(steps === 1 ? WORDS.pass : WORDS.passes, { steps });

const REPLAY_SECONDS = 6; // what a replay on the clock of passes takes

/** How fast a run is played: as it was, or slower if it would be over before anybody has seen it. */
function gentle(clock) {
  if (clock.kind === "passes" || clock.total >= 2 * clock.natural) return 1;
  return [1 / 2, 1 / 4, 1 / 8, 1 / 16].find((speed) => clock.total / (speed * clock.natural) >= 4) ?? 1 / 16;
}
