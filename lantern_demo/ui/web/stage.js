// The stage: one set of lanes for a run that goes on and for one that is over, which is played back on one clock, each lane by its own.

const place = element.querySelector(".stage");
const words = WORDS;
const SPEEDS = [4, 2, 1, 1 / 2, 1 / 4, 1 / 8];
const speedName = (speed) => (speed >= 1 ? `${speed}\u00d7` : `1/${1 / speed}\u00d7`);
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const FLASH = 280; // ms that a fresh token shows its mark
const state = { run: null, lanes: [], grid: 16, time: 0, total: 0, playing: false, speed: 1, last: 0, cell: -1, steps: false, guesses: false, price: false, marks: false };

const source = el("p", { class: "source" });
const playButton = el("button", { type: "button", class: "play", onclick: () => (state.playing ? pause() : play()) }, words.play);
const scrub = el("input", { type: "range", min: 0, max: 1000, value: 0, step: 1, "aria-label": words.scrub, oninput: () => { const to = (state.total * scrub.value) / 1000; pause(); go(to); } });
const time = el("output", { class: "now" });
const rate = el("select", { "aria-label": words.speed, onchange: () => (state.speed = Number(rate.value)) }, ...SPEEDS.map((speed) => el("option", { value: speed, selected: speed === 1 }, speedName(speed))));
const options = el("div", { class: "options" });
const controls = el("div", { class: "controls", role: "group", "aria-label": words.controls }, playButton, scrub, time,
  el("details", { class: "view" }, el("summary", {}, words.view), options));
const grid = el("div", { class: "lanes" });
const look = lookPanel(words, { go, closed, ask: (asked) => server.look(asked) });
place.append(el("h2", { class: "spoken" }, words.stage), el("div", { class: "stage-top" }, source, controls), el("div", { class: "floor" }, grid, look.root));

function lane(view) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const [flag, clock, gain] = [el("span", { class: "flag" }), el("b", { class: "clock" }), el("b", { class: "gain" })];
  const picture = el("button", { type: "button", class: "picture", "aria-label": say(words.open, { method: view.label }) }, canvas);
  const [bar, passes, short, keep] = [el("div", { class: "bar", "aria-hidden": "true" }, el("span")), el("p", { class: "passes" }), el("p", { class: "short" }), el("span", { class: "keep" })];
  const badge = el("span", { class: `badge ${view.lossless ? "lossless" : "lossy"}` }, view.lossless ? words.lossless : words.lossy);
  const made = { view, data: null, image: null, shown: -1, canvas, flag, clock, gain, picture, bar, passes, short, keep };
  made.root = el("article", { class: "lane", id: `lane-${view.name}`, style: `--lane: ${view.colour}`, "data-method": view.id, "aria-label": view.label, onclick: (event) => open(made, event) },
    el("header", {}, el("h3", {}, view.label), badge, keep), el("div", { class: "frame" }, picture, flag), bar, passes, el("p", { class: "took" }, clock, gain), short);
  picture.addEventListener("pointermove", (event) => event.pointerType === "mouse" && made.data && !look.open && light(cellAt(made, event)));
  picture.addEventListener("pointerleave", () => !look.open && light(-1));
  return made;
}

function show() {
  if (!props.value) return;
  const view = JSON.parse(props.value);
  const views = [...view.lanes, ...(view.rest ?? [])];
  const racing = Boolean(view.live) && view.lanes.some((one) => ["waiting", "drawing", "drawn"].includes(one.phase));
  document.body.classList.toggle("racing", racing);
  if (view.run === null || view.run !== state.run) {
    state.lanes = views.map(lane);
    grid.replaceChildren(...state.lanes.map((one) => one.root));
    grid.style.setProperty("--lanes", state.lanes.length);
    state.run = view.run;
    look.close();
  }
  pause();
  source.textContent = view.live ?? view.source.text;
  source.className = `source ${racing ? "racing" : (view.source?.kind ?? "")}`;
  controls.toggleAttribute("data-still", Boolean(view.live));
  for (const part of [playButton, scrub]) part.disabled = Boolean(view.live);
  for (const one of state.lanes) {
    one.view = views.find((other) => other.id === one.view.id) ?? one.view;
    tell(one);
  }
  state.grid = view.grid;
  if (view.live) goOn(view);
  else over(view);
}

/** What is known of a lane beside its clock. */
function tell(one) {
  const { view } = one;
  one.root.dataset.phase = view.phase;
  one.bar.style.setProperty("--share", view.share);
  one.passes.textContent = view.passes;
  one.clock.textContent = view.took;
  one.gain.textContent = view.gain;
  one.short.textContent = view.short;
}

/** A run goes on: pictures come one by one and stay, and fresh tokens flash their marks. */
function goOn(view) {
  time.textContent = "";
  scrub.value = 0;
  scrub.style.setProperty("--played", "0%");
  for (const one of state.lanes) {
    const address = view.pictures[one.view.id];
    if (!address) continue;
    const image = new Image();
    image.onload = () => { if (!one.data) { one.image = image; preview(one, view.fresh?.[one.view.id]); } };
    image.src = address;
  }
}

function preview(one, fresh) {
  const side = fit(one.canvas);
  if (!side || !one.image) return;
  const g = one.canvas.getContext("2d");
  g.drawImage(one.image, 0, 0, side, side);
  const cell = side / state.grid;
  for (const [token, kind] of fresh ?? []) drawMark(g, kind, ((token % state.grid) + 0.5) * cell, (Math.floor(token / state.grid) + 0.5) * cell, cell);
}

/** A run is over: it can be played, and every token looked at. */
function over(view) {
  state.whole = view;
  const images = view.lanes.map((data) => {
    const one = state.lanes.find((other) => other.view.id === data.id);
    ranked(data);
    one.data = data;
    one.shown = -1;
    const file = view.files?.[data.id];
    one.keep.replaceChildren(...(file ? [el("a", { href: file.address, download: file.file, "aria-label": say(words.download, { method: data.label }), onclick: (event) => event.stopPropagation() }, "\u2193")] : []));
    if (!data.picture) return Promise.resolve();
    const image = new Image();
    image.src = data.picture;
    return image.decode().then(() => { data.image = image; one.shown = -1; }, () => {});
  });
  const known = played();
  state.total = Math.max(...known.map((one) => one.data.milliseconds.at(-1)));
  known.sort((a, b) => a.data.milliseconds.at(-1) - b.data.milliseconds.at(-1)).forEach((one, i) => { one.flagged = known.length > 1 ? words.places[i] : ""; });
  tintGuesses(known.map((one) => one.data).filter((data) => data.window));
  fillOptions();
  look.set(view, known.map((one) => one.data));
  window.lanternRun = view;
  document.dispatchEvent(new CustomEvent("lantern-run"));
  const plays = view.play && !calm.matches;
  go(plays ? 0 : state.total);
  // A replay that starts by itself would be in the way of a reader who asked for stillness.
  Promise.all(images).then(() => { if (state.whole !== view) return; repaint(); if (plays && state.time === 0) play(); });
}

const counted = (steps) => say(steps === 1 ? words.pass : words.passes, { steps });
const played = () => state.lanes.filter((one) => one.data);

function fillOptions() {
  const known = played().map((one) => one.data);
  const offered = ["marks", "steps", ...(known.some((data) => data.window) ? ["guesses"] : []), ...(known.some((data) => data.prices && !data.lossless) ? ["price"] : [])];
  const names = { marks: words.showMarks, steps: words.showSteps, guesses: words.showGuesses, price: words.showPrice };
  options.replaceChildren(rate, ...offered.map((name) => el("div", {}, toggle(names[name], state[name], (on) => { state[name] = on; repaint(); }), el("small", {}, words.viewNotes[name]))),
    el("ul", { class: "meaning" }, ...KINDS.map((kind) => el("li", {}, sign(kind), words.kinds[kind]))));
}

function drawing(cell) {
  const cover = getComputedStyle(place).getPropertyValue("--replay-cover").trim() || "#334155";
  return { steps: state.steps, guesses: state.guesses, price: state.price, marks: state.marks, cell, cover };
}

function repaint() {
  for (const one of state.lanes) {
    one.shown = -1;
    if (!one.data) preview(one);
  }
  draw();
  look.paint(drawing(state.cell));
}

function draw() {
  const common = drawing(state.cell);
  for (const one of played()) {
    const { data } = one;
    const end = data.milliseconds.at(-1);
    const [count, done] = [tokensAt(data, state.time), state.time >= end];
    const fresh = state.playing ? tokensAt(data, state.time - FLASH * state.speed) : count;
    one.clock.textContent = seconds(Math.min(state.time, end));
    one.gain.textContent = done ? one.view.gain : "";
    one.flag.textContent = done ? one.flagged : "";
    one.passes.textContent = done ? one.view.passes : counted(Math.max(0, countUpTo(data.milliseconds, state.time) - 1));
    one.bar.style.setProperty("--share", `${(100 * count) / data.tokens.length}%`);
    one.root.toggleAttribute("data-done", done);
    if (count === one.shown && fresh >= count && !one.flashed) continue;
    [one.shown, one.flashed] = [count, fresh < count];
    paint(one.canvas, data, count, state.grid, { ...common, fresh });
  }
  scrub.value = state.total ? Math.round((1000 * state.time) / state.total) : 0;
  scrub.style.setProperty("--played", `${state.total ? (100 * state.time) / state.total : 0}%`);
  scrub.setAttribute("aria-valuetext", seconds(state.time));
  time.textContent = `${seconds(state.time)} / ${seconds(state.total)}`;
}

function go(to) {
  state.time = Math.min(state.total, Math.max(0, to));
  if (!state.playing) named();
  draw();
}

function named() {
  playButton.textContent = state.playing ? words.pause : state.time >= state.total && state.total ? words.again : words.play;
}

function pause() {
  const played_ = state.playing;
  state.playing = false;
  named();
  if (played_) draw();
}

function play() {
  if (state.time >= state.total) state.time = 0;
  state.playing = true;
  state.last = performance.now();
  named();
  requestAnimationFrame(tick);
}

function tick(now) {
  if (!state.playing || !place.isConnected) return;
  if (!place.offsetParent) return pause();
  go(state.time + Math.max(0, now - state.last) * state.speed);
  state.last = now;
  if (state.time >= state.total) pause();
  else requestAnimationFrame(tick);
}

function light(cell) {
  if (cell === state.cell) return;
  state.cell = cell;
  played().forEach((one) => (one.shown = -1));
  draw();
}

function cellAt(one, event) {
  const box = one.canvas.getBoundingClientRect();
  const at = (offset, size) => Math.min(state.grid - 1, Math.max(0, Math.floor((offset / size) * state.grid)));
  return at(event.clientY - box.top, box.height) * state.grid + at(event.clientX - box.left, box.width);
}

function open(one, event) {
  if (!one.data) return;
  const pointed = one.picture.contains(event.target) && event.detail > 0;
  const cell = pointed ? cellAt(one, event) : state.cell >= 0 ? state.cell : telling(one.data);
  look.show(one.data, cell, (data, chosen) => {
    for (const other of state.lanes) other.root.toggleAttribute("data-chosen", other.data === data);
    state.cell = -2; // whatever it was, all lanes light this one
    light(chosen);
    look.paint(drawing(chosen));
  });
  place.classList.add("looking");
  opener = one.picture;
}

/** The token to begin with: one that only relaxation accepted, as near to the middle as there is, or the middle. */
function telling(data) {
  const away = (token) => Math.hypot((token % state.grid) - state.grid / 2, Math.floor(token / state.grid) - state.grid / 2);
  const loose = data.kinds.flatMap((kind, token) => (kind === "r" ? [token] : []));
  return loose.sort((a, b) => away(a) - away(b))[0] ?? (state.grid * (state.grid + 1)) / 2;
}

let opener = null;

function closed() {
  place.classList.remove("looking");
  for (const one of state.lanes) one.root.removeAttribute("data-chosen");
  light(-1);
  opener?.focus({ preventScroll: true });
  opener = null;
}

// Draw becomes Stop and Stop becomes Draw: the one that is there takes the focus of the one that went.
let last = null;
document.addEventListener("focusin", (event) => { last = event.target.id; });
new MutationObserver((changes) => {
  const stop = changes.find(({ target }) => target.id === "stop")?.target;
  const lost = document.activeElement === document.body || !document.activeElement.checkVisibility();
  if (stop && lost && ["stop", "draw"].includes(last)) document.getElementById(stop.disabled ? "draw" : "stop").focus({ preventScroll: true });
}).observe(document.body, { subtree: true, attributes: true, attributeFilter: ["disabled"] });
addEventListener("scroll", () => document.body.classList.toggle("scrolled", scrollY > 120 && innerWidth < 700), { passive: true });
new ResizeObserver(repaint).observe(grid);
watch("value", show);
show();
document.body.classList.add("staged");
