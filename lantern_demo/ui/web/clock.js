// The clocks of a replay: passes of the model, or this machine's seconds. Step 0 reads the prompt.

const REPLAY_SECONDS = 6; // what a replay takes on either clock

/** A clock: `times` of a lane, how its numbers read, and how many of its units a replay shows in a second. */
function machineClock(total) {
  const readOf = (now) => `${(now / 1000).toFixed(2)} / ${seconds(total)}`;
  return { kind: "seconds", times: (lane) => lane.milliseconds, read: seconds, readOf, pace: total / REPLAY_SECONDS };
}

function passClock(total) {
  const readOf = (now) => `${Math.round(now)} / ${Math.round(total)}`;
  return { kind: "passes", times: (lane) => lane.committed.map((_, step) => step), read: (now) => counted(Math.round(now)), readOf, pace: total / REPLAY_SECONDS };
}

const counted = (steps) => say(steps === 1 ? WORDS.pass : WORDS.passes, { steps });
