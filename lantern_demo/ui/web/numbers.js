// The tab "Numbers", below its table: what its buttons copy, and what the record knows of guesses,
// of steps and of look-alikes.

const ROWS = 12; // of bars; the last one has all that follow
const place = element.querySelector(".figures");
const words = WORDS.figures;
const cards = el("div", { class: "cards" });
const note = el("p", { class: "note" });
let [shown, maps] = [null, []];

place.append(
  el("div", { class: "copies" }, copier("table", "tsv"), copier("cite", "bib")),
  cards,
  note,
);

/** A button that copies what the table has as data of that name. */
function copier(name, data) {
  const made = button(name, words[name], async () => {
    const done = await copyText(document.querySelector("#table .table").dataset[data]);
    answerOn(made, done ? WORDS.copied : words.refused, words[name]);
  });
  return made;
}

const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
const summedUp = (rows) => rows.reduce((a, b) => a.map((value, i) => value + b[i]));

/** Rows of counts, at most so many -> [name, counts] of each, named by `named`. */
function folded(rows, named) {
  if (rows.length <= ROWS) return rows.map((counts, i) => [named(i + 1), counts]);
  const first = rows.slice(0, ROWS - 1);
  return [...folded(first, named), [named(ROWS, true), summedUp(rows.slice(ROWS - 1))]];
}

/** A list of bars: of each its name, its share, a paler share behind it, and its words. */
function bars(title, rows) {
  const row = ([name, share, pale, told]) => {
    const style = `--share: ${100 * share}%; --pale: ${100 * pale}%`;
    const track = el("span", { class: "track", "aria-hidden": "true", style });
    return el("li", {}, el("span", {}, name), track, el("span", { class: "value" }, told));
  };
  const list = el("ul", { class: "bars" }, ...rows.map(row));
  return el("figure", {}, el("figcaption", {}, title), list);
}

/** How often guesses were kept, by how far ahead they are. */
function chancesOf({ depths }) {
  const named = (count, more) => say(words.ahead, { count: more ? `${count}+` : count });
  const rows = folded(depths, named).map(([name, [tried, places, kept]]) => {
    const [own, ofPlaces] = [tried ? kept / tried : 0, places ? kept / places : 0];
    const siblings = tried > places ? ` (${percent(ofPlaces)})` : "";
    return [name, own, ofPlaces, say(words.tried, { chance: percent(own), tried }) + siblings];
  });
  return bars(words.chances, rows);
}

/** How many steps added one piece, two, ... */
function sizesOf({ sizes }) {
  const named = (count, more) =>
    more ? say(WORDS.pieces[1], { count: `${count}+` }) : counting(count, WORDS.pieces);
  const rows = folded(sizes.map((steps) => [steps]), named);
  const most = Math.max(...rows.map(([, [steps]]) => steps));
  const told = ([name, [steps]]) => [name, steps / most, 0, counting(steps, WORDS.steps)];
  return bars(words.sizes, rows.map(told));
}

/** Where look-alikes are in the picture; nothing for a method that keeps none. */
function mapOf(lane, grid) {
  if (lane.lossless) return null;
  const places = lane.kinds.length;
  const cells = [...lane.kinds.keys()].filter((cell) => lane.kinds[cell] === "r");
  const inThird = (third) => cells.filter((cell) => Math.floor((3 * cell) / places) === third).length;
  const [top, middle, bottom] = [0, 1, 2].map(inThird);
  const told = say(words.thirds, { method: lane.label, top, middle, bottom });
  const canvas = el("canvas", { class: "map", role: "img", "aria-label": told });
  maps.push(() => paintMap(canvas, lane, cells, grid));
  const title = say(words.map, { count: cells.length, of: lane.total });
  return el("figure", {}, el("figcaption", {}, title), canvas);
}

function paintMap(canvas, lane, cells, grid) {
  const size = fit(canvas);
  if (!size) return;
  const g = canvas.getContext("2d");
  const cell = size / grid;
  g.clearRect(0, 0, size, size);
  if (lane.image) g.drawImage(lane.image, 0, 0, size, size);
  g.fillStyle = "rgba(15, 23, 42, .66)";
  g.fillRect(0, 0, size, size);
  cells.forEach((at, i) => {
    const [x, y] = cellCorner(at, grid, cell);
    g.fillStyle = `rgba(255, 158, 27, ${0.3 + 0.7 * (lane.lent[i] ?? 1)})`;
    g.fillRect(x + 0.5, y + 0.5, cell - 1, cell - 1);
  });
}

function cardOf(lane, grid) {
  const named = { class: "card", "aria-label": lane.label, style: `--lane: ${lane.colour}` };
  const parts = [el("h3", {}, lane.label), chancesOf(lane), sizesOf(lane), mapOf(lane, grid)];
  return el("section", named, ...parts);
}

/** Draw what is known of the run that is shown. */
function follow() {
  const run = window.lanternRun;
  place.hidden = !run;
  if (run && run !== shown) {
    maps = [];
    const lanes = run.lanes.filter(({ depths }) => depths.length);
    cards.replaceChildren(...lanes.map((lane) => cardOf(lane, run.grid)));
    const siblings = lanes.some(({ depths }) => depths.some(([tried, places]) => tried > places));
    const lent = lanes.some((lane) => lane.lent.length);
    const told = [lanes.length && words.counts, siblings && words.siblings, lent && words.lent];
    note.textContent = told.filter(Boolean).join(" ");
    shown = run;
  }
  repaint();
}

const repaint = () => maps.forEach((paintOne) => paintOne());

document.addEventListener("lantern-run", follow); // also once the pictures are there
new ResizeObserver(repaint).observe(place);
follow();
