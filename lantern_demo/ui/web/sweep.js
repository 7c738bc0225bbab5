// What a knob does: a point for each of its values, filled in as they are drawn, with their pictures.

const place = element.querySelector(".sweep");
const words = WORDS;

function show() {
  place.replaceChildren();
  if (!props.value) return;
  const { points, colour, picture, title } = JSON.parse(props.value);
  const { group, x, y, left, right } = axes(Math.max(10, ...points.map((p) => p.changed)), Math.max(1.1, ...points.map((p) => p.speedup)), words.changedAxis, words.speedupAxis, 14);
  const drawing = svg("svg", { viewBox: "0 0 420 250" }, group, svg("line", { class: "even", x1: left, x2: right, y1: y(1), y2: y(1) }));
  drawing.append(svg("polyline", { points: points.map((p) => `${x(p.changed)},${y(p.speedup)}`).join(" "), fill: "none", stroke: colour, "stroke-width": 1.5, "stroke-dasharray": "4 3" }));
  points.forEach((p, i) => drawing.append(marker(i, x(p.changed), y(p.speedup), colour)));
  drawing.append(...labels(points.map((p) => ({ x: x(p.changed), y: y(p.speedup), text: p.label })), left, right));
  const told = points.map((p) => say(words.sweepPoint, { value: p.label, speedup: times(p.speedup), count: p.changed, of: p.of })).join("; ");
  const shot = (name, src, note) => el("figure", { class: "shot" }, el("img", { src, alt: say(words.pictureAt, { value: name }) }), el("figcaption", {}, name, el("small", {}, note)));
  const shots = [picture ? shot(words.vanilla, picture, "1.00\u00d7") : null,
    ...points.map((p) => shot(p.label, p.picture, `${times(p.speedup)} \u00b7 ${say(words.changed, { count: p.changed, of: p.of })}`))];
  place.append(figure(title, told || words.waiting, drawing, words.sweepNote), el("div", { class: "shots" }, ...shots.filter((s) => s)));
}

watch("value", show);
show();
