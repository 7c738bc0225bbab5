// The component: a run as it goes, a lane for each method. Every update says where all lanes are; pictures come one by one and stay.

const place = element.querySelector(".live");
let run = null;
let lanes = new Map();

function lane(view) {
  const picture = el("div", { class: "lane-picture" });
  const numbers = el("div", { class: "lane-numbers" });
  const badge = el("span", { class: `badge ${view.badge}`, title: view.badgeTitle }, view.badge);
  const head = el("div", { class: "lane-head" }, el("h3", {}, view.label, badge), el("p", {}, view.sentence));
  const root = el("section", { class: "lane", id: `lane-${view.name}`, style: `--lane: ${view.colour}`, "aria-label": view.label }, head, picture, numbers);
  return { root, picture, numbers };
}

function show() {
  const update = props.value ? JSON.parse(props.value) : { run: null, lanes: [], pictures: {} };
  // What was shown of another run is hidden, and its replay stands still.
  document.body.classList.toggle("racing", update.lanes.some((view) => ["waiting", "drawing", "drawn"].includes(view.phase)));
  if (update.run !== run) {
    lanes = new Map(update.lanes.map((view) => [view.id, lane(view)]));
    place.replaceChildren(...[...lanes.values()].map(({ root }) => root));
    run = update.run;
  }
  for (const view of update.lanes) {
    const { root, picture, numbers } = lanes.get(view.id);
    root.style.setProperty("--share", view.share);
    numbers.dataset.phase = view.phase;
    const rows = view.rows.flatMap(([name, value, hint]) => [el("dt", {}, name), el("dd", { title: hint }, value)]);
    numbers.replaceChildren(
      el("div", { class: "lane-bar", "aria-hidden": "true" }, el("span")), el("p", { class: "lane-passes" }, view.passes, el("small", {}, view.progress)),
      el("dl", { "aria-label": view.label }, ...rows), el("p", { class: "lane-price", title: view.priceHint }, view.price));
    const source = update.pictures[view.id];
    if (!source) continue;
    const image = picture.querySelector("img") ?? picture.appendChild(el("img", { alt: view.alt }));
    image.src = source.address;
    if (source.file && !picture.querySelector("a")) picture.append(el("a", { href: source.address, download: source.file, title: view.download, "aria-label": view.download }, "\u2193"));
  }
}

watch("value", show);
show();
