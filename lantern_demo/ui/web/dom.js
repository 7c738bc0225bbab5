// Small tools of the page's own components. Text gets into the page as text only, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** An HTML element: attributes, `onevent` listeners, children that are nodes or text. */
function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** A sentence with {names} replaced. */
function say(sentence, values) {
  return sentence.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

const percent = (share) => `${Math.round(100 * share)} %`;
const seconds = (milliseconds) => `${(milliseconds / 1000).toFixed(2)} s`;
/** A probability with as many digits as say something. */
const mass = (p) => (p === 0 ? "0" : p < 0.001 ? p.toExponential(1) : p.toFixed(3));
const summed = (parts, sum = 0) => parts.map((part) => (sum += part));
const times = (speedup) => `${speedup.toFixed(2)}\u00d7`;

/** How many entries of a rising list are at most `value`. */
function countUpTo(list, value) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The marker of a method's place in the order: shapes, for those who do not see the colours. */
function marker(place, x, y, colour, size = 6) {
  const common = { fill: colour, stroke: "var(--body-text-color)", "stroke-width": 1 };
  const polygon = (points) =>
    svg("polygon", {
      points: points.map(([a, b]) => `${x + a * size},${y + b * size}`).join(" "),
      ...common,
    });
  return [
    () => svg("circle", { cx: x, cy: y, r: size, ...common }),
    () => svg("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size, ...common }),
    () =>
      polygon([
        [0, -1.2],
        [1.15, 0.9],
        [-1.15, 0.9],
      ]),
    () =>
      polygon([
        [0, -1.3],
        [1.3, 0],
        [0, 1.3],
        [-1.3, 0],
      ]),
    () =>
      polygon([
        [0, 1.2],
        [1.15, -0.9],
        [-1.15, -0.9],
      ]),
  ][place % 5]();
}

/** Round numbers from 0 to a little over `top`, about `wanted` of them. */
function ticks(top, wanted = 4) {
  const rough = Math.max(top, 1e-9) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const count = Math.max(1, Math.ceil(top / step - 1e-9));
  return Array.from({ length: count + 1 }, (_, i) => Number((i * step).toPrecision(6)));
}

/** Axes with grid lines -> the group, and functions from values to places. The box is 420 x 250. `inset`: how far right of the axis 0 lies. */
function axes(xTop, yTop, xTitle, yTitle, inset = 0) {
  const [left, right, top, bottom] = [44, 408, 12, 208];
  const zero = left + inset;
  const [xs, ys] = [ticks(xTop), ticks(yTop)];
  const x = (value) => zero + ((right - zero) * value) / xs.at(-1);
  const y = (value) => bottom - ((bottom - top) * value) / ys.at(-1);
  const group = svg("g", { class: "axes" });
  for (const value of ys) {
    group.append(svg("line", { x1: left, x2: right, y1: y(value), y2: y(value) }));
    group.append(
      svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, String(value)),
    );
  }
  for (const value of xs)
    group.append(
      svg("text", { x: x(value), y: bottom + 17, "text-anchor": "middle" }, String(value)),
    );
  group.append(
    svg("text", { x: (left + right) / 2, y: bottom + 36, "text-anchor": "middle" }, xTitle),
  );
  group.append(
    svg(
      "text",
      { x: -(top + bottom) / 2, y: 2, "text-anchor": "middle", transform: "rotate(-90)" },
      yTitle,
    ),
  );
  return { group, x, y, left, right };
}

/** Labels beside points, each where it hides no point and no other label. points: [{ x, y, text }] */
function labels(points, left, right) {
  const taken = points.map(({ x, y }) => [x - 8, x + 8, y]);
  const free = ([from, to, at]) =>
    from >= left &&
    to <= right &&
    at > 8 &&
    at < 204 &&
    !taken.some(([a, b, y]) => from < b && to > a && Math.abs(at - y) < 14);
  return points.map(({ x, y, text }) => {
    const wide = 9 * text.length; // of the larger letters on a phone
    const places = [0, -14, 14, -28, 28].flatMap((by) => [
      [x + 11, x + 11 + wide, y + by, "start"],
      [x - 11 - wide, x - 11, y + by, "end"],
    ]);
    const place = places.find(free) ?? places[0];
    taken.push(place);
    return svg(
      "text",
      {
        class: "label",
        x: place[3] === "start" ? place[0] : place[1],
        y: place[2] + 4,
        "text-anchor": place[3],
      },
      text,
    );
  });
}

/** A drawing with a title, a sentence for screen readers, and what to know about it below. */
function figure(title, description, content, note) {
  return el(
    "figure",
    {},
    el("figcaption", {}, title),
    description ? fill(content, { role: "img", "aria-label": description }, []) : content,
    note ? el("p", { class: "note" }, note) : null,
  );
}
