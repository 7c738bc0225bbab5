// The stage: a lane for each method, of a run that goes on or of one that is over and replayed.

const place = element.querySelector(".stage");
const words = WORDS;
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const FLASH = 280; // ms that a fresh piece shows its mark
const FADE = 700; // ms in which the pictures of a race appear
const MOST = 6; // lanes in a row
const FRAME = 33; // ms between two pictures of a replay: without a graphics card more takes a core
const state = { run: null, lanes: [], grid: 16, time: 0, total: 0, cell: -1 };
Object.assign(state, { playing: false, last: 0, ranks: new Map(), leader: null });
state.opened = new URLSearchParams(location.search).has("prompt"); // a link, not yet drawn

const headline = document.querySelector("#headline h1");
headline.dataset.old = words.earlier;
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
    const to = state.total * (scrub.value / 1000);
    pause();
    state.leader = null;
    go(to);
  },
});
const explainButton = button("explain", words.explain, () => look());
const linkButton = button("link", words.copy, copyLink);
const legend = el("p", { class: "legend" }, el("span", { class: "wide" }, words.legend.title));
for (const kind of "te") legend.append(el("span", {}, markOf(kind), words.legend[kind]));
const alikeButton = button("alike", "", showAlike);
alikeButton.append(markOf("r"), words.legend.r);
alikeButton.setAttribute("aria-pressed", false);
legend.append(alikeButton);
const alikeTold = el("span", { hidden: true }, words.alikeTold);
const group = { class: "controls", role: "group", "aria-label": words.controls };
const controls = el("div", group, playButton, scrub, explainButton, linkButton);
const key = el("p", { class: "key" }, words.key.title);
for (const name of PARTS) key.append(el("span", {}, el("i", { class: name }), words.key[name]));
const foot = el("div", { class: "stage-foot" }, legend, key, source, controls);
const grid = el("div", { class: "lanes" });
const why = el("p", { class: "why" });
place.append(el("h2", { class: "spoken" }, words.stage), grid, why);

const played = () => state.lanes.filter((one) => one.data);
const finished = () => played().map((one) => one.data);
const stopped = () => state.whole.rest?.some(({ phase }) => phase === "stopped");
const vanillaData = () => finished().find((data) => data.id === "vanilla") ?? null;

/** Light the cell that a mouse points at in a lane's picture; without an event none. */
function hover(one, event) {
  if (event && (event.pointerType !== "mouse" || !one.data)) return;
  light(event ? cellAt(one.canvas, state.grid, event) : -1);
}

/** The last part is `more` where a phone has no room for it. */
function setHeadline([before, number, after, more]) {
  headline.replaceChildren(before, el("em", {}, number), el("span", { class: more }, after));
}

function show() {
  const view = JSON.parse(props.value);
  const views = [...view.lanes, ...(view.rest ?? [])];
  const racing = Boolean(view.racing);
  const another = view.run === null || view.run !== state.run;
  // An answer to an earlier press, which came after a race began.
  if (another && !racing && document.body.matches(".racing")) return;
  document.body.classList.toggle("racing", racing);
  if (another) {
    const before = new Map(state.lanes.map((one) => [one.view.id, one.canvas]));
    const old = (id) => (racing && !calm.matches ? before.get(id) : null);
    const hooks = { open, hover, cut, rest, grid: () => state.grid };
    state.lanes = views.map((one) => laneOf(one, hooks, old(one.id)));
    grid.replaceChildren(...state.lanes.map((one) => one.root), foot);
    grid.style.setProperty("--count", Math.min(views.length, MOST));
    grid.toggleAttribute("data-many", views.length >= MOST);
    state.run = view.run;
  }
  if (view.own) setAddress(view.link, another);
  state.link = view.link ?? state.link;
  pause();
  // The words beside a race; or, as the styles have it, beside a refusal or a wait.
  source.textContent = racing ? view.live : view.live ? "" : words.before;
  source.toggleAttribute("data-live", racing);
  for (const part of [playButton, scrub, explainButton, alikeButton])
    part.disabled = Boolean(view.live);
  // No run is shown during another one.
  for (const run of document.querySelectorAll("#runs button")) run.disabled = racing;
  Object.assign(state, { grid: view.grid, model: view.model });
  if (another) cut();
  state.ranks = ranksOf(views);
  grid.removeAttribute("data-over");
  for (const one of state.lanes) {
    one.view = views.find((other) => other.id === one.view.id) ?? one.view;
    tellLane(one, state.ranks.get(one.view.id));
  }
  if (view.live) goOn(view, views, racing);
  else over(view);
}

/** The link of what is shown becomes the page's address; the theme stays. A run has one entry in
 * the history: the end of a run, and the run of an opened link, replace theirs. */
function setAddress(link, another) {
  const write = another && !state.opened ? "pushState" : "replaceState";
  state.opened = false;
  const asked = new URLSearchParams(link);
  const theme = new URLSearchParams(location.search).get("__theme");
  if (theme) asked.set("__theme", theme);
  if (`?${asked}` !== location.search) history[write](history.state, "", `?${asked}`);
}

/** Copy the link of what is shown; where no page may copy, show it selected. */
async function copyLink() {
  const link = location.origin + location.pathname + (state.link ?? location.search);
  const copied = played().some(({ data }) => data.kept) ? words.copiedWhole : words.copied;
  if (await copyText(link)) answerOn(linkButton, copied, words.copy);
  else prompt(words.copyIt, link);
}

/** A run goes on: pieces are painted as they are told. */
function goOn(view, views, racing) {
  // Nothing is told of a run that is not shown. Where a lane is done, results come next.
  if (!racing && !views.some(({ phase }) => phase === "done")) {
    window.lanternRun = null;
    document.dispatchEvent(new CustomEvent("lantern-run"));
  }
  why.textContent = "";
  inOrder();
  why.removeAttribute("data-later");
  scrub.value = 0;
  scrub.style.setProperty("--played", "0%");
  if (racing) lead(views.filter(({ phase }) => phase !== "failed"));
  else setHeadline([view.live, "", ""]);
  for (const one of state.lanes) {
    if (one.data) continue;
    const told = view.fresh[one.view.id] ?? [];
    view.kept.forEach((token, at) => one.drawn.cells.set(at, ["k", token]));
    one.drawn.kept = view.kept.length;
    const isNew = ([at]) => racing && !one.drawn.cells.has(at);
    one.drawn.fresh = told.filter(isNew).map(([at]) => at);
    for (const [at, kind, token] of told) one.drawn.cells.set(at, [kind, token]);
    mosaic(one);
  }
}

/** On a phone lanes stand in two columns: the winner first, or who is likely to win, then vanilla. */
function inOrder(winner) {
  state.lanes.forEach((one, at) => {
    const order = one.view.id === "vanilla" ? 3 : 2 * (state.lanes.length - at);
    one.root.style.setProperty("--order", winner && one.data === winner ? 0 : order);
  });
}

/** The headline while lanes are drawn. */
function lead(lanes) {
  const leader = leaderOf(lanes, state.leader);
  state.leader = leader?.id;
  setHeadline(headlineAt(lanes, leader));
}

function mosaic(one) {
  if (one.data?.image) return;
  const looks = looksOf(state.model, one.view.colour, () => state.lanes.forEach(mosaic));
  paintMosaic(one.canvas, one.drawn, state.grid, { looks, cover: coverColour() });
}

/** A run is over: it can be replayed, and every piece looked at. */
function over(view) {
  state.whole = view;
  const images = view.lanes.map((data) => {
    const one = state.lanes.find((other) => other.view.id === data.id);
    data.kinds = [...data.kinds];
    for (const rising of ["milliseconds", "committed"]) data[rising] = summed(data[rising]);
    Object.assign(one, { data, shown: -1 });
    const href = view.files?.[data.id];
    const save = {
      href,
      download: `${data.name}.png`,
      "aria-label": say(words.download, { method: data.label }),
      onclick: (event) => event.stopPropagation(),
    };
    one.keep.replaceChildren(href ? el("a", save, "\u2193") : "");
    if (!data.picture) return Promise.resolve();
    return imageAt(data.picture).then(
      (image) => (one.drawn.image = image),
      () => (data.picture = null),
    );
  });
  const known = played();
  const first = vanillaData();
  for (const one of known) tellCost(one, first);
  const busy = finished().some(({ disturbed }) => disturbed);
  why.replaceChildren(
    busy ? el("b", {}, words.disturbed) : "",
    first ? el("span", {}, ...numbersOf(finished())) : "",
    el("span", {}, reason(finished(), stopped())),
    alikeTold,
  );
  inOrder(fastest(finished()));
  explainButton.disabled = !known.length;
  state.total = Math.max(...finished().map(took));
  window.lanternRun = view;
  const plays = view.source.kind === "recorded" && !calm.matches;
  go(plays ? 0 : state.total);
  // A replay that starts by itself would be in the way of a reader who asked for stillness.
  Promise.all(images).then(async () => {
    const seen = known.some((one) => one.drawn.cells.size); // of a race that went on here
    if (seen && !calm.matches) await appear(view);
    if (state.whole !== view) return;
    for (const one of known) one.data.image = one.drawn.image;
    repaint();
    document.dispatchEvent(new CustomEvent("lantern-run"));
    if (plays && state.time === 0) play();
  });
}

/** Which methods have other random numbers than vanilla, and which share them. */
function numbersOf(lanes) {
  const others = lanes.filter(({ id }) => id !== "vanilla");
  const own = others.filter(({ shares }) => !shares);
  // guesses of a window are draws with vanilla's numbers: sharing makes them
  const sharing = others.filter(({ shares, window }) => shares && !window);
  const told = (methods, [one, several]) =>
    say(methods.length > 1 ? several : one, { methods: listed(methods) });
  if (!own.length) return [];
  const shared = sharing.length ? ` ${told(sharing, words.shared)}` : "";
  const twin = own.some(({ lossless }) => !lossless) ? ` ${words.twinShows}` : "";
  return [el("b", {}, told(own, words.ownNumbers)), shared + twin];
}

/** Let all pictures appear together, over the pieces that are there. */
function appear(view) {
  return new Promise((done) => {
    const began = performance.now();
    const step = (now) => {
      const share = Math.min(1, Math.max(0, now - began) / FADE);
      if (share === 1 || state.whole !== view || !place.isConnected) return done();
      for (const one of played()) {
        one.drawn.share = share;
        mosaic(one);
      }
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  });
}

function repaint() {
  for (const one of state.lanes) {
    one.shown = -1;
    if (one.drawn.cells.size) mosaic(one);
  }
  draw();
}

function draw() {
  const known = played();
  if (!known.length) return;
  const now = state.time;
  const common = { cell: state.cell, cover: coverColour(), alike: !alikeTold.hidden };
  const ended = now >= state.total;
  const at = { now, ranks: state.ranks, tell: secondsOf(finished()) };
  at.longest = ended ? state.total : null;
  grid.toggleAttribute("data-over", ended);
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
  const so = (data) => ({
    ...data,
    committed: tokensAt(data, now) - data.kept,
    total: data.total,
    seconds: Math.min(now, took(data)) / 1000,
  });
  if (ended) setHeadline(headlineOf(finished(), stopped()));
  else lead(finished().map(so));
  why.toggleAttribute("data-later", !ended);
  scrub.value = state.total ? Math.round((1000 * now) / state.total) : 0;
  scrub.style.setProperty("--played", `${scrub.value / 10}%`);
  scrub.setAttribute("aria-valuetext", seconds(now));
}

/** How far a replay goes on the methods' clocks in a millisecond. */
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

function drawAnew() {
  played().forEach((one) => (one.shown = -1));
  draw();
}

function light(cell) {
  if (cell === state.cell) return;
  state.cell = cell;
  drawAnew();
}

/** Mark the look-alikes on all pictures, and say what they are; or stop that. */
function showAlike() {
  alikeTold.hidden = !alikeTold.hidden;
  alikeButton.setAttribute("aria-pressed", !alikeTold.hidden);
  drawAnew();
}

/** The tab "How it works" tells the step that drew a piece of a lane; without them, one that shows most. */
function look(data, cell) {
  document.getElementById("how-button").click();
  document.dispatchEvent(new CustomEvent("lantern-look", { detail: { data, cell } }));
}

/** A click points at a piece; a key does not. */
function open(one, event) {
  if (!one.data) return;
  const pointed = one.picture.contains(event.target) && event.detail > 0;
  look(one.data, pointed ? cellAt(one.canvas, state.grid, event) : undefined);
}

/** Put the line of a lane's picture under so many rows; no other picture then has one. */
function cut(one, rows) {
  for (const other of state.lanes) tellCut(other, other === one ? rows : 0, state.grid);
}

/** Have all methods draw on from the rows above a lane's line. */
function rest(one) {
  const press = document.querySelector("#draw:enabled");
  if (!press) return;
  press.focus({ preventScroll: true });
  trigger("select", { index: one.rows, value: one.view.id });
}

/** Say so where the server is not where Gradio looks for it, as behind a path of a proxy. */
async function findServer() {
  const { root } = window.gradio_config;
  if (root === location.origin + location.pathname.replace(/\/$/, "")) return;
  const health = await fetch(`${root}/healthz`).then((answer) => answer.json()).catch(() => ({}));
  if (health.model) return;
  place.prepend(el("p", { class: "status error", role: "alert" }, words.noServer));
}

findServer();
new ResizeObserver(repaint).observe(grid);
watch("value", show);
show();
document.body.classList.add("staged");
