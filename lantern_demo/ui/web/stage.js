// The stage: a lane for each method, of a run that goes on or of one that is over and replayed.

const place = element.querySelector(".stage");
const words = WORDS;
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const FLASH = 280; // ms that a fresh piece shows its mark
const FRAME = 33; // ms between two pictures of a replay: without a graphics card more takes a core
const state = { run: null, lanes: [], grid: 16, time: 0, total: 0, cell: -1 };
Object.assign(state, { playing: false, last: 0, ranks: new Map(), here: false });
state.led = false; // whether the look took the replay to one of its steps

const headline = document.querySelector("#headline h1");
const button = (name, text, onclick) =>
  el("button", { type: "button", class: name, onclick }, text);
const source = el("p", { class: "source" });
const playButton = button("play", words.play, () => (state.playing ? pause() : play()));
const scrub = el("input", {
  type: "range",
  min: 0,
  max: 1000,
  value: 0,
  step: 1,
  "aria-label": words.scrub,
  oninput: () => {
    const to = (state.total * scrub.value) / 1000;
    pause();
    go(to);
  },
});
const explainButton = button("explain", words.explain.open, () => explain());
const linkButton = button("link", words.copy, copyLink);
const grid = el("div", { class: "lanes" });
const why = el("p", { class: "why" });
const fold = el("details", { class: "fold look" }, el("summary", {}, words.lookTitle));
let [look, coming, opener] = [null, null, null];

place.append(
  el("h2", { class: "spoken" }, words.stage),
  el(
    "div",
    { class: "stage-top" },
    el(
      "div",
      { class: "controls", role: "group", "aria-label": words.controls },
      playButton,
      scrub,
    ),
    explainButton,
    linkButton,
    source,
  ),
  grid,
  why,
  fold,
);
fold.addEventListener("toggle", () => (fold.open ? unfolded() : closed()));
fold.addEventListener("keydown", (event) => event.key === "Escape" && (fold.open = false));

const played = () => state.lanes.filter((one) => one.data);
const finished = () => played().map((one) => one.data);
const vanillaData = () => finished().find((data) => data.id === "vanilla") ?? null;

/** Light the cell that a mouse points at in a lane's picture; without an event none. */
function hover(one, event) {
  if (fold.open || (event && (event.pointerType !== "mouse" || !one.data))) return;
  light(event ? cellAt(one.canvas, state.grid, event) : -1);
}

/** The last part is `more` where a phone has no room for it. */
function setHeadline([before, number, after, more]) {
  headline.replaceChildren(before, el("em", {}, number), el("span", { class: more }, after));
}

function show() {
  const view = JSON.parse(props.value);
  const views = [...view.lanes, ...(view.rest ?? [])];
  const racing =
    Boolean(view.live) && views.some((one) => ["waiting", "drawing"].includes(one.phase));
  document.body.classList.toggle("racing", racing);
  if (view.run === null || view.run !== state.run) {
    const before = new Map(state.lanes.map((one) => [one.view.id, one.canvas]));
    const old = (id) => (racing && !calm.matches ? before.get(id) : null);
    state.lanes = views.map((one) => laneOf(one, { open, hover }, old(one.id)));
    grid.replaceChildren(...state.lanes.map((one) => one.root));
    grid.style.setProperty("--count", views.length);
    state.run = view.run;
    state.ranks = new Map();
    fold.open = false;
    endExplaining();
  }
  if (view.own) setAddress(view.link);
  state.link = view.link ?? state.link;
  pause();
  source.textContent = racing ? view.live : "";
  linkButton.textContent = words.copy;
  for (const part of [playButton, scrub, explainButton])
    part.disabled = Boolean(view.live);
  Object.assign(state, { grid: view.grid, model: view.model });
  for (const one of state.lanes) {
    one.view = views.find((other) => other.id === one.view.id) ?? one.view;
    if (one.view.phase === "done" && !state.ranks.has(one.view.id))
      state.ranks.set(one.view.id, state.ranks.size); // in the order of arrival
    tellLane(one, state.ranks.get(one.view.id));
  }
  if (view.live) goOn(view, views, racing);
  else over(view);
}

/** The link of what is shown becomes the page's address; the theme stays. */
function setAddress(link) {
  const asked = new URLSearchParams(link);
  const theme = new URLSearchParams(location.search).get("__theme");
  if (theme) asked.set("__theme", theme);
  if (`?${asked}` !== location.search) history.pushState(history.state, "", `?${asked}`);
}

/** Copy the link of what is shown. */
async function copyLink() {
  await navigator.clipboard.writeText(location.origin + location.pathname + (state.link ?? ""));
  linkButton.textContent = words.copied;
}

/** A run goes on: pieces are painted as they are told, and sharpened by decoded pictures. */
function goOn(view, views, racing) {
  why.textContent = racing ? words.racing : "";
  scrub.value = 0;
  scrub.style.setProperty("--played", "0%");
  setHeadline(racing ? headlineAt(views) : [view.live, "", ""]);
  for (const one of state.lanes) {
    if (one.data) continue;
    const told = view.fresh[one.view.id] ?? [];
    const isNew = ([at]) => racing && !one.drawn.cells.has(at);
    one.drawn.fresh = told.filter(isNew).map(([at]) => at);
    for (const [at, kind, token] of told) one.drawn.cells.set(at, [kind, token]);
    const address = view.pictures[one.view.id];
    if (address) {
      const sharp = new Set(one.drawn.cells.keys());
      const image = new Image();
      image.onload = () => {
        Object.assign(one.drawn, { image, sharp });
        mosaic(one);
      };
      image.src = address;
    }
    mosaic(one);
  }
}

function mosaic(one) {
  if (one.data) return;
  const palette = state.model && paletteOf(state.model, () => state.lanes.forEach(mosaic));
  paintMosaic(one.canvas, one.drawn, state.grid, {
    palette,
    cover: cover(),
    colour: one.view.colour,
  });
}

/** A run is over: it can be replayed, and every piece looked at. */
function over(view) {
  state.whole = view;
  const images = view.lanes.map((data) => {
    const one = state.lanes.find((other) => other.view.id === data.id);
    data.kinds = [...data.kinds];
    for (const rising of ["milliseconds", "committed"]) data[rising] = summed(data[rising]);
    Object.assign(one, { data, shown: -1 });
    data.times = data.committed.map((_, step) => step);
    const href = view.files?.[data.id];
    const save = {
      href,
      download: `${data.name}.png`,
      "aria-label": say(words.download, { method: data.label }),
      onclick: (event) => event.stopPropagation(),
    };
    one.keep.replaceChildren(href ? el("a", save, "\u2193") : "");
    if (!data.picture) return Promise.resolve();
    const image = new Image();
    image.src = data.picture;
    return image.decode().then(
      () => {
        data.image = image;
        one.shown = -1;
      },
      () => {
        data.picture = null;
      },
    );
  });
  const known = played();
  const first = vanillaData();
  for (const one of known) tellCost(one, first);
  why.replaceChildren(
    el("span", {}, reason(finished())),
    finished().some((data) => !data.shares && data.id !== "vanilla") && first
      ? el("b", {}, words.ownNumbers)
      : "",
  );
  explainButton.disabled = !explainable();
  state.here = view.source.kind === "live";
  state.total = Math.max(...finished().map((data) => data.steps));
  const arrived = finished().sort((a, b) => a.steps - b.steps);
  const rank = (data) => arrived.findIndex((other) => other.steps === data.steps); // equals share it
  state.ranks = new Map(arrived.map((data) => [data.id, rank(data)]));
  look?.set(view, finished());
  if (fold.open) unfolded();
  window.lanternRun = view;
  document.dispatchEvent(new CustomEvent("lantern-run"));
  const plays = view.source.kind === "recorded" && !calm.matches;
  go(plays ? 0 : state.total);
  // A replay that starts by itself would be in the way of a reader who asked for stillness.
  Promise.all(images).then(() => {
    if (state.whole !== view) return;
    repaint();
    if (plays && state.time === 0) play();
  });
}

const cover = () => getComputedStyle(place).getPropertyValue("--replay-cover").trim() || "#334155";

function repaint() {
  for (const one of state.lanes) {
    one.shown = -1;
    if (!one.data && one.drawn.cells.size) mosaic(one);
  }
  draw();
  look?.repaint();
}

function draw() {
  const known = played();
  if (!known.length) return;
  const now = state.time;
  const common = { cell: state.cell, cover: cover(), edge: !explaining };
  const at = { now, ranks: state.ranks, here: state.here };
  for (const one of known) {
    const { data } = one;
    const count = tokensAt(data, now);
    const fresh = state.playing ? tokensAt(data, now - FLASH * pace()) : count;
    tellReplay(one, vanillaData(), at);
    if (data.picture && !data.image) continue; // until then the race's last picture stays
    if (count === one.shown && fresh >= count && !one.flashed) continue;
    [one.shown, one.flashed] = [count, fresh < count];
    paint(one.canvas, data, count, state.grid, { ...common, fresh });
  }
  const so = ({ id, label, committed, steps }) => {
    const step = Math.min(Math.floor(now), steps);
    return { id, label, committed: committed[step], total: last(committed), steps: step };
  };
  setHeadline(now >= state.total ? headlineOf(finished()) : headlineAt(finished().map(so)));
  scrub.value = state.total ? Math.round((1000 * now) / state.total) : 0;
  scrub.style.setProperty("--played", `${scrub.value / 10}%`);
  scrub.setAttribute("aria-valuetext", counted(Math.floor(now)));
}

/** How far a replay goes on its clock in a millisecond. */
const pace = () => state.total / (1000 * REPLAY_SECONDS);

function go(to) {
  state.time = Math.min(state.total, Math.max(0, to));
  playButton.textContent = state.playing ? words.pause : words.play;
  draw();
}

function pause() {
  state.playing = false;
  playButton.textContent = words.play;
}

function play() {
  endExplaining();
  if (state.time >= state.total) state.time = 0;
  state.playing = true;
  state.last = performance.now();
  go(state.time);
  requestAnimationFrame(tick);
}

function tick(now) {
  if (!state.playing || !place.isConnected) return;
  if (now - state.last < FRAME) return requestAnimationFrame(tick);
  go(state.time + Math.max(0, now - state.last) * pace());
  state.last = now;
  if (state.time < state.total) return requestAnimationFrame(tick);
  pause();
  draw();
}

function light(cell) {
  if (cell === state.cell) return;
  state.cell = cell;
  played().forEach((one) => (one.shown = -1));
  draw();
}

/** The panel for a look comes when somebody first looks -> whether it is there. */
function looks() {
  const loaded = (done, failed) =>
    document.head.append(el("script", { src: "look.js", onload: done, onerror: failed }));
  coming ??= new Promise(loaded).then(
    () => {
      const goTo = (data, step) => {
        pause();
        state.led = true;
        go(data.times[step]);
      };
      look = lookPanel(fold, { ask: (asked) => server.look(asked), chosen, goTo });
      look.set(state.whole, finished());
      return true;
    },
    () => {
      coming = null;
    },
  );
  return coming;
}

async function open(one, event) {
  if (!one.data) return;
  const pointed = one.picture.contains(event.target) && event.detail > 0;
  const cell = pointed
    ? cellAt(one.canvas, state.grid, event)
    : state.cell >= 0
      ? state.cell
      : telling(one.data);
  if (!(await looks()) || !played().includes(one)) return;
  look.show(one.data, cell);
  opener ??= one.picture;
}

/** Another lane or piece is looked at. */
function chosen(data, cell) {
  for (const other of state.lanes) other.root.toggleAttribute("data-chosen", other.data === data);
  state.cell = -2; // whatever it was, all lanes light this one
  light(cell);
  look.repaint();
}

/** The fold was opened by itself: it begins with the method that changed most. */
function unfolded() {
  if (opener) return;
  const most = [...played()].sort((a, b) => b.data.changed - a.data.changed)[0];
  if (!most) return;
  opener = fold.querySelector("summary");
  open(most, {});
}

/** The piece to begin with: a look-alike near the middle, or the middle. */
const telling = (data) => changedTokens(data, state.grid)[0] ?? (state.grid * (state.grid + 1)) / 2;

function closed() {
  if (state.led) go(state.total);
  state.led = false;
  for (const one of state.lanes) one.root.removeAttribute("data-chosen");
  light(-1);
  if (fold.contains(document.activeElement)) opener?.focus({ preventScroll: true });
  opener = null;
}

new ResizeObserver(repaint).observe(grid);
watch("value", show);
show();
document.body.classList.add("staged");
