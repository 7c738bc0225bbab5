// A run that is asked for far below brings its race into view.

function raceInView() {
  const told = document.getElementById("told");
  const { top } = told.getBoundingClientRect();
  if (top >= 0 && top < innerHeight / 2) return;
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  told.scrollIntoView({ block: "start", behavior: calm ? "instant" : "smooth" });
}

/** Bring a loaded record's race into view, or the sentence of its refusal, which may appear below the window's edge. */
function loadedInView(refusal) {
  if (!refusal) return raceInView();
  requestAnimationFrame(() => document.getElementById("load-told").scrollIntoView({ block: "nearest" }));
}

/** Draw, from a button far from the race. */
function drawInView() {
  raceInView();
  document.getElementById("draw").click();
}
