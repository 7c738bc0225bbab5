// The race: every finished method's picture, uncovered as its tokens were committed, all on one clock.

const SPEEDS = [4, 2, 1, 1 / 2, 1 / 4, 1 / 8];
const speedName = (speed) => (speed >= 1 ? `${speed}\u00d7` : `1/${1 / speed}\u00d7`);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** Build a replay of `view`. It ends by itself once it is no longer in the page. */
function replay(view, words) {
  const { lanes, grid } = view;
  const total = Math.max(...lanes.map((lane) => lane.milliseconds.at(-1)));
  const state = { time: total, playing: false, speed: 1, lane: 0, cell: 0, steps: false, guesses: false, price: false, marks: true, last: 0 };
  lanes.forEach(ranked);
  const windows = lanes.filter((lane) => lane.window);
  const priced = lanes.some((lane) => lane.prices && !lane.lossless);
  tintGuesses(windows);
  const firstLoose = lanes.findIndex((lane) => lane.kinds.includes("r"));
  if (firstLoose >= 0) [state.lane, state.cell] = [firstLoose, lanes[firstLoose].kinds.indexOf("r")];
  const order = [...lanes].sort((a, b) => a.milliseconds.at(-1) - b.milliseconds.at(-1));

  const panels = lanes.map((lane, i) => {
    const canvas = el("canvas", { role: "img", "aria-label": say(words.pictureOf, { method: lane.label, prompt: view.prompt }), onclick: (event) => point(i, event) });
    const clock = el("b", { class: "clock" });
    const flag = el("span", { class: "flag" });
    const badge = el("span", { class: `badge ${lane.lossless ? "lossless" : "lossy"}`, title: lane.lossless ? words.losslessTitle : words.lossyTitle },
      lane.lossless ? words.lossless : words.lossy);
    const speedup = lane.speedup === null ? words.noBaseline : say(words.speedup, { speedup: times(lane.speedup) });
    const choose = el("button", { type: "button", class: "closer", onclick: () => select(i, state.cell, true) }, say(words.closer, { method: lane.label }));
    const article = el("article", { class: "racer", style: `--lane: ${lane.colour}`, "data-method": lane.id },
      el("header", {}, el("h4", {}, lane.label), badge), el("p", { class: "sentence" }, lane.sentence), el("div", { class: "stage" }, canvas, flag), el("p", { class: "times" }, clock), el("p", { class: "facts" }, speedup, el("br"), lane.said),
      legend(lane, words, true), choose);
    return { lane, canvas, clock, flag, article, choose, shown: -1 };
  });

  const big = el("canvas", {
    class: "big", tabindex: "0", role: "application", "aria-roledescription": words.gridRole, "aria-describedby": "replay-cell",
    onclick: (event) => point(state.lane, event), onkeydown: steer,
    onpointermove: (event) => event.pointerType === "mouse" && point(state.lane, event),
  });
  const about = el("div", { id: "replay-cell", "aria-live": "polite" });
  const legendPlace = el("div");
  const picker = el("select", { "aria-label": words.pick, onchange: () => select(Number(picker.value), state.cell) },
    ...lanes.map((lane, i) => el("option", { value: i }, lane.label)));

  const playButton = el("button", { type: "button", class: "play", onclick: () => (state.playing ? pause() : play()) });
  const scrub = el("input", { type: "range", min: 0, max: 1000, value: 1000, step: 1, "aria-label": words.scrub, oninput: () => { pause(); go((total * scrub.value) / 1000); } });
  const time = el("output", { class: "now" });
  const rate = el("select", { "aria-label": words.speed, onchange: () => (state.speed = Number(rate.value)) },
    ...SPEEDS.map((speed) => el("option", { value: speed, selected: speed === 1 }, speedName(speed))));
  const controls = el("div", { class: "controls", role: "group", "aria-label": words.controls }, playButton,
    el("button", { type: "button", class: "again", onclick: () => { go(0); play(); } }, words.restart), scrub, time, rate,
    toggle(words.showSteps, state.steps, (on) => { state.steps = on; repaint(); }),
    windows.length ? toggle(words.showGuesses, state.guesses, (on) => { state.guesses = on; repaint(); }) : null,
    priced ? toggle(words.showPrice, state.price, (on) => { state.price = on; repaint(); }) : null,
    toggle(words.showMarks, state.marks, (on) => { state.marks = on; repaint(); }));

  const race = el("div", { class: "race", style: `--racers: ${lanes.length}` }, ...panels.map((panel) => panel.article), meaning(words));
  const closeUp = el("section", { class: "close-up", "aria-label": words.closeTitle }, el("h3", {}, words.closeTitle), el("p", { class: "note" }, words.closeNote, windows.length ? ` ${words.guessesNote}` : null),
    el("div", { class: "bench" }, el("div", { class: "table-top" }, picker, big, legendPlace), about));
  const root = el("div", {}, el("h3", {}, words.title), el("p", { class: `source ${view.source.kind}` }, view.source.text),
    lanes.length > 1 ? el("p", { class: "note" }, words.note) : null, controls, race, closeUp);

  function options(i, chosen) {
    const cover = getComputedStyle(root).getPropertyValue("--replay-cover").trim() || "#334155";
    return { steps: state.steps, guesses: state.guesses, price: state.price, marks: state.marks, cell: chosen ? state.cell : -1, cover };
  }

  function repaint() {
    panels.forEach((panel, i) => (panel.shown = -1));
    draw();
    paint(big, lanes[state.lane], grid * grid, grid, options(state.lane, true));
  }

  function draw() {
    panels.forEach((panel, i) => {
      const end = panel.lane.milliseconds.at(-1);
      const count = tokensAt(panel.lane, state.time);
      const done = state.time >= end;
      panel.clock.textContent = seconds(Math.min(state.time, end));
      panel.flag.textContent = done && lanes.length > 1 ? words.places[order.indexOf(panel.lane)] : "";
      panel.article.toggleAttribute("data-done", done);
      if (count === panel.shown) return;
      panel.shown = count;
      paint(panel.canvas, panel.lane, count, grid, options(i, false));
    });
    scrub.value = Math.round((1000 * state.time) / total);
    scrub.style.setProperty("--played", `${(100 * state.time) / total}%`);
    scrub.setAttribute("aria-valuetext", seconds(state.time));
    time.textContent = `${seconds(state.time)} / ${seconds(total)}`;
  }

  function go(to) {
    state.time = Math.min(total, Math.max(0, to));
    draw();
  }

  function label() {
    playButton.textContent = state.playing ? words.pause : words.play;
  }

  function pause() {
    state.playing = false;
    label();
  }

  function play() {
    if (state.time >= total) state.time = 0;
    state.playing = true;
    state.last = performance.now();
    label();
    requestAnimationFrame(tick);
  }

  function tick(now) {
    if (!state.playing || !root.isConnected) return;
    if (!root.offsetParent) return pause(); // hidden: on the same machine it would be in the way of what is timed
    go(state.time + Math.max(0, now - state.last) * state.speed);
    state.last = now;
    if (state.time >= total) pause();
    else requestAnimationFrame(tick);
  }

  function select(i, cell, scroll = false) {
    const moved = i !== state.lane || !legendPlace.firstChild;
    [state.lane, state.cell] = [i, cell];
    picker.value = i;
    if (moved) legendPlace.replaceChildren(legend(lanes[i], words, false));
    panels.forEach((panel, at) => panel.article.toggleAttribute("data-chosen", at === i));
    big.setAttribute("aria-label", say(words.gridLabel, { method: lanes[i].label }));
    about.replaceChildren(tokenDetails(lanes[i], cell, grid, words));
    paint(big, lanes[i], grid * grid, grid, options(i, true));
    if (scroll) {
      closeUp.scrollIntoView({ behavior: calm.matches ? "auto" : "smooth", block: "nearest" });
      big.focus({ preventScroll: true });
    }
  }

  function point(i, event) {
    const box = event.currentTarget.getBoundingClientRect();
    const at = (offset, size) => Math.min(grid - 1, Math.max(0, Math.floor((offset / size) * grid)));
    const cell = at(event.clientY - box.top, box.height) * grid + at(event.clientX - box.left, box.width);
    if (i !== state.lane || cell !== state.cell) select(i, cell);
  }

  function steer(event) {
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -grid, ArrowDown: grid, Home: -grid * grid, End: grid * grid }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const to = state.cell + move;
    if (Math.abs(move) === grid ? to >= 0 && to < grid * grid : true) select(state.lane, Math.min(grid * grid - 1, Math.max(0, to)));
  }

  for (const panel of panels) {
    if (!panel.lane.picture) continue;
    const image = new Image();
    image.onload = () => { panel.lane.image = image; repaint(); };
    image.src = panel.lane.picture;
  }
  new ResizeObserver(repaint).observe(race);
  label();
  select(state.lane, state.cell);
  draw();
  return { root, play, calm: calm.matches };
}
