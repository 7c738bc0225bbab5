// A run in numbers: its speedup against what it changed, and tokens over time.

/** Speedup against changed tokens, with a label for each point. points: [{ changed, speedup, label }], with `colour` and `place` of their
 * markers; `joined`: the colour of a line through all of them, and of their markers. */
function speedups(points, words, joined = null) {
  const { group, x, y, left, right } = axes(Math.max(10, ...points.map((p) => p.changed)), Math.max(1.1, ...points.map((p) => p.speedup)), words.changedAxis, words.speedupAxis, 14);
  const drawing = svg("svg", { viewBox: "0 0 420 250" }, group, svg("line", { class: "even", x1: left, x2: right, y1: y(1), y2: y(1) }));
  const at = points.map((p) => ({ x: x(p.changed), y: y(p.speedup), text: p.label }));
  if (joined) drawing.append(svg("polyline", { points: at.map((p) => `${p.x},${p.y}`).join(" "), fill: "none", stroke: joined, "stroke-width": 1.5, "stroke-dasharray": "4 3" }));
  points.forEach((p, i) => drawing.append(marker(p.place ?? i, at[i].x, at[i].y, joined ?? p.colour)));
  drawing.append(...labels(at, left, right));
  return drawing;
}

function changedChart(lanes, words) {
  const known = lanes.filter((lane) => lane.speedup !== null);
  if (!known.length) return figure(words.changedTitle, null, el("p", { class: "note" }, words.noBaseline));
  const drawing = speedups(known.map((lane) => ({ ...lane, place: lanes.indexOf(lane) })), words);
  const told = known.map((lane) => say(words.changedPoint, { method: lane.label, speedup: times(lane.speedup), count: lane.changed, of: lane.tokens.length })).join("; ");
  return figure(words.changedTitle, told, drawing, words.changedNote);
}

function tokenLines(lanes, words) {
  const most = Math.max(...lanes.map((lane) => lane.milliseconds.at(-1))) / 1000;
  const total = lanes[0].kinds.length;
  const { group, x, y } = axes(most, total, words.secondsAxis, words.tokensAxis);
  const drawing = svg("svg", { viewBox: "0 0 420 250" }, group);
  lanes.forEach((lane, place) => {
    let path = `M ${x(0)} ${y(0)}`;
    lane.committed.forEach((count, step) => (path += `H ${x(lane.milliseconds[step] / 1000).toFixed(1)} V ${y(count).toFixed(1)}`));
    drawing.append(svg("path", { d: path, fill: "none", stroke: lane.colour, "stroke-width": 2 }));
    // The markers sit along the lines, each at a height of its own, so that they do not hide each other.
    const at = countUpTo(lane.committed, total * (0.3 + 0.13 * place));
    drawing.append(marker(place, x(lane.milliseconds[at] / 1000), y(lane.committed[at]), lane.colour, 5));
  });
  const told = lanes.map((lane) => say(words.linePoint, { method: lane.label, seconds: seconds(lane.milliseconds.at(-1)) })).join("; ");
  const key = el("ul", { class: "key" }, ...lanes.map((lane, place) => el("li", {}, svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, marker(place, 8, 8, lane.colour, 5)), lane.label)));
  return figure(words.linesTitle, told, drawing, null).appendChild(key).parentNode;
}
