// What a knob does: a point for each of its values, filled in as they are drawn, with their pictures.

const place = element.querySelector(".sweep");
const words = WORDS;

function show() {
  place.replaceChildren();
  if (!props.value) return;
  const { points, colour, picture, title } = JSON.parse(props.value);
  const drawing = speedups(points, words, colour);
  const told = points.map((p) => say(words.sweepPoint, { value: p.label, speedup: times(p.speedup), count: p.changed, of: p.of })).join("; ");
  const shot = (name, src, note) => el("figure", { class: "shot" }, el("img", { src, alt: say(words.pictureAt, { value: name }) }), el("figcaption", {}, name, el("small", {}, note)));
  const shots = [picture ? shot(words.vanilla, picture, "1.00\u00d7") : null,
    ...points.map((p) => shot(p.label, p.picture, `${times(p.speedup)} \u00b7 ${say(words.changed, { count: p.changed, of: p.of })}`))];
  place.append(figure(title, told || words.waiting, drawing, words.sweepNote), el("div", { class: "shots" }, ...shots.filter((s) => s)));
}

watch("value", show);
show();
