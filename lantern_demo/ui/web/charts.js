// A run in numbers: its speedup against what it changed, and tokens over time.

/** Speedup against what was changed. */
function changedChart(lanes, words) {
  const known = lanes.filter((lane) => lane.speedup !== null);
  if (!known.length) return figure(words.changedTitle, null, el("p", { class: "note" }, words.noBaseline));
  const { group, x, y, left, right } = axes(Math.max(10, ...known.map((lane) => lane.changed)), Math.max(1.1, ...known.map((lane) => lane.speedup)), words.changedAxis, words.speedupAxis, 14);
  const drawing = svg("svg", { viewBox: "0 0 420 250" }, group, svg("line", { class: "even", x1: left, x2: right, y1: y(1), y2: y(1) }));
  for (const lane of known) drawing.append(marker(lanes.indexOf(lane), x(lane.changed), y(lane.speedup), lane.colour));
  drawing.append(...labels(known.map((lane) => ({ x: x(lane.changed), y: y(lane.speedup), text: lane.label })), left, right));
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
