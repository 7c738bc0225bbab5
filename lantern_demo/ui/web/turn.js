// Change lambda, delta or k: how many passes other values of a setting took, and what they changed, where that was recorded.

const place = element.querySelector(".turn");
const words = WORDS;
let shown = null;

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
    const facts = { steps: say(words.passes, point), alone: point.of - 1, changed: say(words.changed, { count: point.changed, of: point.of }) };
    told.replaceChildren(el("b", {}, point.label), ` \u2014 ${say(words.sweepAt, facts)}`);
  }
  set(at);
  return el("div", { class: "turned", style: `--lane: ${colour}` }, image, el("div", {}, el("h3", {}, title), slider, marks, told));
}

async function show() {
  const { sweeps, settings } = window.lanternRun ?? {};
  if (sweeps?.address === shown) return;
  shown = sweeps?.address;
  place.replaceChildren();
  if (!shown) return;
  place.style.setProperty("--turns", sweeps.count);
  const answer = await fetch(shown).catch(() => null);
  if (shown !== sweeps.address) return;
  if (answer?.ok) place.replaceChildren(...(await answer.json()).map((sweep) => turned(sweep, settings[sweep.setting])), el("p", { class: "note" }, words.sweepNoted));
  else place.replaceChildren(el("p", { class: "note" }, words.noSweeps));
}

document.addEventListener("lantern-run", show);
show();
