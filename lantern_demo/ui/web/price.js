// The panel "Turn the look-alikes up": a slider moves a recorded picture, its look-alikes, and a ring
// on the curve of speed against pictures that a judge recognises.

const LABEL = 175; // the width of a curve's name, of a chart's 440

/** Make the panel of PRICE. */
function pricePanel() {
  const words = WORDS.price;
  const { methods, vanilla, grid } = PRICE;
  const all = methods.flatMap(({ points }) => points);
  const speeds = [1, ...all.map(({ speedup }) => speedup)];
  const [slowest, fastest] = [Math.min(...speeds) - 0.05, Math.max(...speeds) + 0.05];
  const [wide, tall, left, right, top, bottom] = [440, 280, 34, 12, 10, 44]; // of the chart
  let [method, point] = [methods.at(-1), null];

  const percent = (share) => `${Math.round(100 * share)}\u00a0%`;
  const digits = { minimumFractionDigits: 1, maximumFractionDigits: 1, signDisplay: "exceptZero" };
  const points = (share) => (100 * share).toLocaleString("en", digits);
  const at = ({ value }, { knob } = method) => say(words.at, { knob, value });
  const x = (speed) => left + ((speed - slowest) / (fastest - slowest)) * (wide - left - right);
  const shares = all.flatMap(({ share, changed }) => [share, 1 - changed]);
  const least = Math.min(0.75, Math.floor(4 * Math.min(...shares)) / 4); // of the chart
  const y = (share) => top + ((1 - share) / (1 - least)) * (tall - top - bottom);

  const choices = methods.map((one) => {
    const made = button("choice", "", () => choose(one));
    made.append(el("i", { style: `background: ${one.colour}` }), one.label);
    return made;
  });
  const slider = el("input", { type: "range", min: 0, step: 1, oninput: () => turn(slider.value) });
  const [value, scale] = [el("output"), el("p", { class: "scale", "aria-hidden": "true" })];
  const canvas = el("canvas", { role: "img" });
  const [run, told, verdict] = [el("p"), el("p"), el("p", { class: "verdict" })];
  const ring = svg("circle", { r: 9, class: "ring" });
  const source = say(words.recorded, { ...PRICE, date: PRICE.created.slice(0, 10) });

  /** The curves of a method: named pictures, with the interval of each point, and exact pieces. */
  function curveOf({ points, colour }) {
    const line = points.map(({ speedup, share }) => `${x(speedup)} ${y(share)}`).join("L");
    const own = points.map(({ speedup, changed }) => `${x(speedup)} ${y(1 - changed)}`).join("L");
    const within = (share) => y(Math.min(1, Math.max(least, vanilla.share + share)));
    const bar = ({ speedup, less: [, low, up] }) => `M${x(speedup)} ${within(low)}V${within(up)}`;
    const dot = ({ speedup, share }) => svg("circle", { cx: x(speedup), cy: y(share), r: 4 });
    const lines = svg("path", { d: `M${line}${points.map(bar).join("")}` });
    const exact = svg("path", { class: "exact", d: `M${own}` });
    return svg("g", { style: `--lane: ${colour}` }, exact, lines, ...points.map(dot));
  }

  function chartOf() {
    const label = (text, cx, cy, anchor) =>
      svg("text", { x: cx, y: cy, "text-anchor": anchor }, text);
    const tick = fastest - slowest > 1.5 ? 0.5 : 0.25;
    const marks = [...Array(40).keys()].map((i) => i * tick);
    const ticks = marks.filter((speed) => speed > slowest && speed < fastest);
    const rows = [0, 0.2, 0.4, 0.6, 0.8, 1].map((part) => least + part * (1 - least));
    const level = (share) => `M${left} ${y(share)}H${wide - right}`;
    const each = methods.flatMap((one) =>
      one.points.map((own) =>
        say(words.point, {
          method: one.label,
          at: at(own, one),
          speedup: times(own.speedup),
          share: percent(own.share),
          own: percent(1 - own.changed),
        }),
      ),
    );
    return svg(
      "svg",
      {
        viewBox: `0 0 ${wide} ${tall}`,
        role: "img",
        "aria-label": say(words.points, { told: each.join("; ") }),
      },
      svg("path", { class: "level", d: rows.map(level).join("") }),
      ...rows.map((share) => label(Math.round(100 * share), left - 6, y(share) + 4, "end")),
      ...ticks.map((speed) => label(speed.toFixed(2), x(speed), tall - bottom + 18, "middle")),
      label(words.faster, (left + wide - right) / 2, tall - 8, "middle"),
      svg("path", { class: "vanilla", d: level(vanilla.share) }),
      label(words.vanilla, x(1) + 8, y(vanilla.share) + 18, "start"),
      svg("circle", { class: "vanilla", cx: x(1), cy: y(vanilla.share), r: 4 }),
      ...methods.map(curveOf),
      ...methods.map(({ points: [, ...own], label: method }) => {
        const { speedup, changed } = own.at(-1);
        const end = Math.max(x(speedup), left + LABEL);
        return label(say(words.kept, { method }), end, y(1 - changed) + 18, "end");
      }),
      label(words.named, x(fastest), y(vanilla.share) + 18, "end"),
      ring,
    );
  }

  /** Whether the judge sees a method's look-alikes, and from where on. */
  function verdictOf({ points }) {
    const last = points.at(-1);
    const first = points.findLastIndex(({ less: [, , up] }) => up >= 0) + 1;
    const unseen = percent(1 - 0.01 ** (1 / PRICE.pictures)); // of pictures that all succeed
    const facts = { ...PRICE, at: at(last), share: percent(last.share), unseen };
    return first === points.length
      ? say(words.holds, facts)
      : say(words.breaks, { ...facts, first: at(points[first]) });
  }

  /** Show a method, at the value that the page's runs have. */
  function choose(one) {
    method = one;
    choices.forEach((made, i) => made.setAttribute("aria-pressed", methods[i] === one));
    slider.max = one.points.length - 1;
    slider.setAttribute("aria-label", one.knob);
    const mark = (own, at) => el("span", { onclick: () => turn(at) }, String(own.value));
    scale.replaceChildren(...one.points.map(mark));
    verdict.textContent = verdictOf(one);
    turn(one.points.findIndex((own) => own.value === one.preset));
  }

  function turn(to) {
    slider.value = to;
    point = method.points[to];
    const [less, low, high] = point.less.map(points);
    const lost = point.less[2] < 0;
    const alike = point.alike.length;
    const steps = counting(point.steps, WORDS.steps);
    const facts = { method: method.label, at: at(point), alike, steps, of: grid * grid };
    value.textContent = facts.at;
    slider.setAttribute("aria-valuetext", say(words.told, facts));
    slider.style.setProperty("--played", `${(100 * to) / slider.max}%`);
    const sentence = point === method.points[0] ? words.exact : words.run;
    run.textContent = say(sentence, { ...facts, vanilla: vanilla.steps });
    const shares = { share: percent(point.share), vanilla: percent(vanilla.share) };
    const gained = { speedup: times(point.speedup), changed: percent(point.changed) };
    const difference = lost ? ` ${say(words.less, { less, low, high })}` : "";
    const [exact] = method.points; // the same tree by the exact rule
    const without = point === exact ? "" : say(words.without, { speedup: times(exact.speedup) });
    told.textContent = say(words.all, { ...PRICE, ...gained, ...shares, without }) + difference;
    ring.setAttribute("transform", `translate(${x(point.speedup)} ${y(point.share)})`);
    canvas.setAttribute("aria-label", say(words.picture, { ...PRICE, ...facts }));
    paint();
  }

  function paint() {
    const size = fit(canvas);
    if (!size || !point.image) return;
    const g = canvas.getContext("2d");
    const cell = size / grid;
    g.drawImage(point.image, 0, 0, size, size);
    for (const [colour, width] of [["rgba(0, 0, 0, 0.6)", cell / 5], [INK.r, cell / 10]]) {
      [g.strokeStyle, g.lineWidth] = [colour, width];
      for (const place of point.alike) {
        const [column, row] = cellCorner(place, grid, cell);
        g.strokeRect(column + cell / 10, row + cell / 10, 0.8 * cell, 0.8 * cell);
      }
    }
  }

  const root = el(
    "section",
    { class: "price", "aria-label": words.title },
    el("h2", {}, words.title),
    canvas,
    el("div", { class: "choices", role: "group", "aria-label": words.methods }, ...choices),
    el("div", { class: "turn" }, value, slider, scale),
    el("div", { class: "facts" }, run, told, verdict, el("p", { class: "note" }, source)),
    el("figure", {}, el("figcaption", {}, words.chart), chartOf()),
  );
  choose(method);
  for (const own of all)
    imageAt(own.picture).then((image) => {
      own.image = image;
      if (own === point) paint();
    });
  new ResizeObserver(paint).observe(canvas);
  return root;
}
