// The stage: one card for each lane for a run that goes on and for one that is over, which is played back on a clock that one may choose.

const place = element.querySelector(".stage");
const words = WORDS;
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const FLASH = 280; // ms that a fresh token shows its mark
const FRAME = 33; // ms between two pictures of a replay: where no graphics card draws, more would take a processor for themselves
const state = { run: null, lanes: [], grid: 16, clock: null, picked: null, compared: false, time: 0, total: 0, playing: false, last: 0, cell: -1 };

const source = el("p", { class: "source" });
const [headline, why] = [el("p", { class: "headline", "aria-live": "polite" }), el("p", { class: "why" })];
const playButton = el("button", { type: "button", class: "play", onclick: () => (state.playing ? pause() : play()) }, words.play);
const scrub = el("input", { type: "range", min: 0, max: 1000, value: 0, step: 1, "aria-label": words.scrub, oninput: () => { const to = (state.total * scrub.value) / 1000; pause(); go(to); } });
const time = el("output", { class: "now" });
const differ = el("button", { type: "button", class: "differ", "aria-pressed": "false", onclick: () => compare(!state.compared) }, words.differences);
const controls = el("div", { class: "controls", role: "group", "aria-label": words.controls }, playButton, scrub, time);
const clockButton = (kind) => el("button", { type: "button", "data-clock": kind, "aria-pressed": "false", onclick: () => { state.picked = kind; useClock(kind); } }, words.clocks[kind]);
const clockButtons = ["passes", "seconds"].map(clockButton);
const clocks = el("div", { class: "clocks", role: "group", "aria-label": words.clock }, ...clockButtons);
const grid = el("div", { class: "lanes" });
let [look, coming, opener] = [null, null, null];
const fold = el("details", { class: "fold look", ontoggle: () => (fold.open ? unfolded() : closed()), onkeydown: (event) => event.key === "Escape" && look?.close() }, el("summary", {}, words.lookTitle));
const hint = el("p", { class: "note hint" }, words.marks, ...KINDS.map((kind) => el("span", {}, sign(kind), words.kinds[kind])), words.hint);
const touring = el("button", { type: "button", class: "link", onclick: async () => {
  pause();
  const [from, at] = [scrollY, state.time];
  const ended = () => { look.close(); go(at); scrollTo({ top: from, behavior: "instant" }); touring.focus({ preventScroll: true }); };
  if ((await looks()) && touring.isConnected) tour({ lanes: played().map((one) => one.data), grid: state.grid, root: fold, ended, open: (data, cell) => lookAt(played().find((one) => one.data === data), cell) });
} }, words.tour.open);
place.append(el("h2", { class: "spoken" }, words.stage), headline, why, el("div", { class: "stage-top" }, source, clocks, controls, differ), grid, hint, fold);

function lane(view) {
  const canvas = el("canvas", { "aria-hidden": "true" });
  const [flag, sample, keep] = ["flag", "sample", "keep"].map((name) => el("span", { class: name }));
  const [passes, fewer, took, gain] = ["", "fewer", "", "gain"].map((name) => el("b", { class: name }));
  const [number, ran] = ["number", "ran"].map((name) => el("p", { class: name }));
  const picture = el("button", { type: "button", class: "picture", "aria-label": say(words.open, { method: view.label }) }, canvas);
  const bar = el("div", { class: "bar", "aria-hidden": "true" }, el("span"));
  const badge = el("span", { class: `badge ${view.lossless ? "exact" : "lossy"}` }, view.badge);
  const wipe = el("input", { type: "range", class: "wipe", hidden: true, min: 0, max: 100, value: 50, "aria-label": say(words.wipe, { method: view.label }), onclick: (event) => event.stopPropagation(), oninput: () => { made.shown = -1; draw(); } });
  const made = { view, data: null, wipe, drawn: drawnSoFar(), shown: -1, canvas, flag, sample, passes, fewer, took, gain, picture, bar, number, ran, keep };
  made.root = el("article", { class: "lane", id: `lane-${view.name}`, style: `--lane: ${view.colour}`, "data-method": view.id, "aria-label": view.label, onclick: (event) => open(made, event) },
    el("header", {}, el("h3", {}, view.label), badge), el("div", { class: "frame" }, picture, flag, sample, keep, wipe), bar,
    el("p", { class: "passes" }, passes, fewer), el("p", { class: "seconds" }, took, gain), number, ran);
  picture.addEventListener("pointermove", (event) => event.pointerType === "mouse" && made.data && !look?.open && light(cellAt(canvas, state.grid, event)));
  picture.addEventListener("pointerleave", () => !look?.open && light(-1));
  return made;
}

function show() {
  if (!props.value) return;
  const view = JSON.parse(props.value);
  const views = [...view.lanes, ...(view.rest ?? [])];
  const racing = Boolean(view.live) && view.lanes.some((one) => ["waiting", "drawing"].includes(one.phase));
  document.body.classList.toggle("racing", racing);
  if (view.run === null || view.run !== state.run) {
    state.lanes = views.map(lane);
    grid.replaceChildren(...state.lanes.map((one) => one.root));
    state.run = view.run;
    look?.close();
  }
  pause();
  source.textContent = racing ? view.live : (view.source?.text ?? "");
  source.className = `source ${racing ? "racing" : (view.source?.kind ?? "")}`;
  for (const part of [playButton, scrub, differ, ...clockButtons]) part.disabled = Boolean(view.live);
  for (const one of state.lanes) {
    one.view = views.find((other) => other.id === one.view.id) ?? one.view;
    tell(one);
  }
  state.grid = view.grid;
  state.model = view.model;
  if (view.live) goOn(view, racing);
  else over(view);
}

/** What the server says of a lane: all there is while it draws, and for one that did not finish. */
function tell(one) {
  const { view } = one;
  one.root.dataset.phase = view.phase;
  one.bar.style.setProperty("--share", view.share);
  for (const part of ["passes", "fewer", "took", "gain", "number"]) one[part].textContent = view[part];
  one.ran.textContent = view.ran.replace(/ (?=\d)/g, "\u00a0"); // no line breaks between a name and its value
}

/** A run goes on: its tokens are painted as they are told, and sharpened when a decoded picture comes. */
function goOn(view, racing) {
  document.dispatchEvent(new CustomEvent("lantern-live"));
  time.textContent = "";
  scrub.value = 0;
  scrub.style.setProperty("--played", "0%");
  headline.textContent = racing ? words.racing : view.live;
  why.textContent = racing ? words.racingOn : "";
  for (const [part, on] of [[clockButtons[0], false], [clockButtons[1], true]]) part.setAttribute("aria-pressed", String(on));
  for (const one of state.lanes) {
    if (one.data) continue;
    const told = view.fresh[one.view.id] ?? [];
    one.drawn.fresh = told.flatMap(([at]) => (one.drawn.cells.has(at) ? [] : [at]));
    for (const [at, kind, token] of told) one.drawn.cells.set(at, [kind, token]);
    const address = view.pictures[one.view.id];
    if (address) {
      const sharp = new Set(one.drawn.cells.keys());
      const image = new Image();
      image.onload = () => { Object.assign(one.drawn, { image, sharp }); mosaic(one, view.model); };
      image.src = address;
    }
    mosaic(one, view.model);
  }
}

function mosaic(one, model) {
  if (one.data) return;
  const palette = model && paletteOf(model, () => state.lanes.forEach((other) => mosaic(other, model)));
  paintMosaic(one.canvas, one.drawn, state.grid, { palette, cover: cover(), colour: one.view.colour });
}

/** A run is over: it can be played on either clock, and every token looked at. */
function over(view) {
  state.whole = view;
  const images = view.lanes.map((data) => {
    const one = state.lanes.find((other) => other.view.id === data.id);
    data.kinds = [...data.kinds];
    for (const rising of ["milliseconds", "committed"]) data[rising] = summed(data[rising]);
    one.data = data;
    one.shown = -1;
    const file = view.files?.[data.id];
    one.keep.replaceChildren(...(file ? [el("a", { href: file.address, download: file.file, "aria-label": say(words.download, { method: data.label }), onclick: (event) => event.stopPropagation() }, "\u2193")] : []));
    if (!data.picture) return Promise.resolve();
    const image = new Image();
    image.src = data.picture;
    return image.decode().then(() => { data.image = image; one.shown = -1; }, () => { data.picture = null; });
  });
  const known = played().map((one) => one.data);
  state.total = 0;
  useClock(state.picked ?? (view.source.kind === "live" ? "seconds" : "passes"));
  const first = known.find((data) => data.id === "vanilla");
  for (const data of known) data.differs = new Set(first ? data.tokens.flatMap((token, at) => (token === first.tokens[at] ? [] : [at])) : []);
  // Of a method that drew with other random numbers a difference says nothing.
  differ.disabled = !known.some((data) => data.shares && data.differs.size);
  compare(state.compared && !differ.disabled);
  look?.set(view, known);
  if (fold.open) unfolded();
  window.lanternRun = view;
  document.dispatchEvent(new CustomEvent("lantern-run"));
  const plays = view.source.kind === "recorded" && !calm.matches;
  go(plays ? 0 : state.total);
  // A replay that starts by itself would be in the way of a reader who asked for stillness.
  Promise.all(images).then(() => { if (state.whole !== view) return; repaint(); if (plays && state.time === 0) play(); });
}

const played = () => state.lanes.filter((one) => one.data);

/** Put the replay on a clock, at the same share of it. */
function useClock(kind) {
  const known = played();
  if (!known.length) return;
  const share = state.total ? state.time / state.total : 1;
  state.clock = kind;
  for (const one of known) one.data.times = CLOCKS[kind].times(one.data);
  const end = (one) => one.data.times.at(-1);
  state.total = Math.max(...known.map(end));
  const first = Math.min(...known.map(end));
  for (const one of known) Object.assign(one, { flagged: known.length > 1 && end(one) === first ? words.first : "", shown: -1 });
  for (const part of clockButtons) part.setAttribute("aria-pressed", String(part.dataset.clock === kind));
  tellStory(known.map((one) => one.data));
  go(share * state.total);
}

function tellStory(known) {
  const [story, other] = verdict(known, state.clock, words);
  headline.textContent = story;
  why.replaceChildren(state.compared ? words.whyDiffer : other, " ", known.some((lane) => lane.kinds.includes("r")) ? touring : "");
}

/** Show on the lanes that drew something else than vanilla where they did, and vanilla's picture beside theirs, with a wipe between them. */
function compare(on) {
  state.compared = on;
  differ.setAttribute("aria-pressed", String(on));
  const vanilla = played().find((one) => one.data.id === "vanilla");
  for (const one of played()) {
    const { differs, shares, tokens } = one.data;
    const marked = on && shares && differs.size;
    one.wipe.hidden = !marked;
    one.sample.textContent = marked ? say(words.differ, { count: differs.size, of: tokens.length }) : vanilla && !shares && one !== vanilla ? words.otherSample : "";
    one.shown = -1;
  }
  if (state.clock) tellStory(played().map((one) => one.data));
  if (state.clock) draw();
}

const cover = () => getComputedStyle(place).getPropertyValue("--replay-cover").trim() || "#334155";

function repaint() {
  for (const one of state.lanes) {
    one.shown = -1;
    if (!one.data && one.drawn.cells.size) mosaic(one, state.model);
  }
  if (state.clock) draw();
  look?.paint();
}

function draw() {
  const common = { cell: state.cell, cover: cover() };
  const clock = CLOCKS[state.clock];
  const vanilla = played().find((one) => one.data.id === "vanilla")?.data;
  for (const one of played()) {
    const { data } = one;
    const end = data.times.at(-1);
    const [count, done] = [tokensAt(data, state.time), state.time >= end];
    const fresh = state.playing ? tokensAt(data, state.time - FLASH * pace()) : count;
    const step = Math.max(0, countUpTo(data.times, state.time) - 1);
    one.passes.textContent = counted(step);
    one.took.textContent = seconds(state.clock === "seconds" ? Math.min(state.time, end) : data.milliseconds[step]);
    for (const part of ["fewer", "gain"]) one[part].textContent = done ? one.view[part] : "";
    one.flag.textContent = done ? one.flagged : "";
    one.number.textContent = done ? one.view.number : say(words.tokens, { count, total: data.tokens.length });
    one.bar.style.setProperty("--share", `${(100 * count) / data.tokens.length}%`);
    one.root.toggleAttribute("data-done", done);
    if (data.picture && !data.image) continue; // until it is decoded the race's last picture of it stays
    if (count === one.shown && fresh >= count && !one.flashed) continue;
    [one.shown, one.flashed] = [count, fresh < count];
    const wiped = one.wipe.hidden || count < data.tokens.length ? null : { image: vanilla?.image, share: one.wipe.value / 100 };
    paint(one.canvas, data, count, state.grid, { ...common, fresh, wiped, differs: one.wipe.hidden ? null : data.differs });
  }
  scrub.value = state.total ? Math.round((1000 * state.time) / state.total) : 0;
  scrub.style.setProperty("--played", `${state.total ? (100 * state.time) / state.total : 0}%`);
  scrub.setAttribute("aria-valuetext", clock.read(state.time));
  time.textContent = clock.readOf(state.time, state.total);
}

/** How far a replay goes on its clock in a millisecond. */
const pace = () => state.total / (1000 * REPLAY_SECONDS);

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
  if (now - state.last < FRAME) return requestAnimationFrame(tick);
  go(state.time + Math.max(0, now - state.last) * pace());
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

/** The panel for a look, with its scripts and what they tell of the page's first run, comes when somebody first looks -> whether it is there. */
function looks() {
  coming ??= new Promise((done, failed) => document.head.append(el("script", { src: "look.js", onload: done, onerror: failed }))).then(() => {
    look = lookPanel(words, fold, { goTo: (data, step) => go(data.times[step]), ask: (asked) => server.look(asked) });
    look.set(state.whole, played().map((one) => one.data));
    return true;
  }, () => { coming = null; });
  return coming;
}

async function open(one, event) {
  if (!one.data) return;
  const pointed = one.picture.contains(event.target) && event.detail > 0;
  const cell = pointed ? cellAt(one.canvas, state.grid, event) : state.cell >= 0 ? state.cell : telling(one.data);
  if ((await looks()) && played().includes(one)) lookAt(one, cell);
}

function lookAt(one, cell) {
  look.show(one.data, cell, (data, chosen) => {
    for (const other of state.lanes) other.root.toggleAttribute("data-chosen", other.data === data);
    state.cell = -2; // whatever it was, all lanes light this one
    light(chosen);
    look.paint();
  });
  opener ??= one.picture;
}

/** The fold was opened by itself: it begins with the method that changed most. */
function unfolded() {
  if (opener) return;
  const most = [...played()].sort((a, b) => b.data.changed - a.data.changed)[0];
  if (!most) return;
  opener = fold.querySelector("summary");
  open(most, {});
}

/** The token to begin with: one that only relaxation accepted, as near to the middle as there is, or the middle. */
const telling = (data) => changedTokens(data, state.grid)[0] ?? (state.grid * (state.grid + 1)) / 2;

function closed() {
  for (const one of state.lanes) one.root.removeAttribute("data-chosen");
  light(-1);
  if (fold.contains(document.activeElement)) opener?.focus({ preventScroll: true });
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
// What an address asks for comes with the server's first answer; until then no recording stands there as if it were that.
if (!location.search) show();
else document.addEventListener("lantern-started", () => state.lanes.length || show(), { once: true });
document.body.classList.add("staged");
