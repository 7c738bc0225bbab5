// The numbers and the knob: what the run on the stage gained and changed, and what other values of a knob do, where that was recorded.

const place = element.querySelector(".numbers");
const words = WORDS;

/** A recorded sweep: the slider answers at once. */
function turned({ title, colour, points }, before) {
  const at = Math.max(0, points.findIndex((point) => point.value === before));
  const [image, told] = [el("img", { alt: "" }), el("p", { "aria-live": "polite" })];
  const slider = el("input", { type: "range", min: 0, max: points.length - 1, step: 1, value: at, "aria-label": title, oninput: () => set(Number(slider.value)) });
  const marks = el("div", { class: "marks", "aria-hidden": "true" }, ...points.map((point) => el("span", {}, point.label)));
  function set(i) {
    const point = points[i];
    image.src = point.picture;
    image.alt = say(words.pictureAt, { value: point.label });
    slider.setAttribute("aria-valuetext", point.label);
    told.replaceChildren(el("b", {}, point.label), ` \u2014 ${say(words.passes, { steps: point.steps })}, ${times(point.speedup)}, ${say(words.changed, { count: point.changed, of: point.of })}`);
  }
  set(at);
  return el("div", { class: "turned", style: `--lane: ${colour}` }, image, el("div", {}, el("h3", {}, title), slider, marks, told, el("p", { class: "note" }, words.sweepNoted)));
}

/** The recorded sweeps, asked for once somebody comes near them. */
function sweepsOf({ address, count }, settings) {
  const box = el("div", { class: "turns", style: `--turns: ${count}` });
  new IntersectionObserver(async ([entry], watching) => {
    if (!entry.isIntersecting) return;
    watching.disconnect();
    const answer = await fetch(address).catch(() => null);
    if (answer?.ok) box.replaceChildren(...(await answer.json()).map((sweep) => turned(sweep, settings[sweep.setting])));
    else box.replaceChildren(el("p", { class: "note" }, words.noSweeps));
  }, { rootMargin: "300px" }).observe(box);
  return box;
}

function show() {
  const view = window.lanternRun;
  if (!view) return;
  const has = (id) => view.lanes.some((lane) => lane.id === id);
  const alike = view.lanes.some((lane) => lane.id !== "vanilla" && !lane.differs?.size);
  const also = [!alike && has("vanilla") && !view.lanes[0].greedy && view.lanes.some((lane) => lane.lossless && lane.id !== "vanilla") ? words.whyOther : null, has("eagle1") && has("lantern++") ? words.control : null];
  place.replaceChildren(el("h2", {}, words.numbersTitle), el("p", {}, words.numbersNote), ...also.filter((told) => told).map((told) => el("p", {}, told)),
    el("div", { class: "figures" }, changedChart(view.lanes, words)), view.sweeps ? sweepsOf(view.sweeps, view.settings) : "");
}

document.addEventListener("lantern-run", show);
show();
