// All numbers of the run on the stage.

const place = element.querySelector(".table");
const words = WORDS;
const charts = el("div", { class: "figures" });
const rows = el("div", { class: "scroll", tabindex: "0", role: "region" });
place.append(charts, rows);

function show() {
  if (!props.value) return;
  const { title, head, rows: all } = JSON.parse(props.value);
  rows.setAttribute("aria-label", title);
  rows.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ...head.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ...all.map(([name, ...values]) => el("tr", {}, el("th", { scope: "row" }, name), ...values.map((value) => el("td", {}, value)))))));
}

function draw() {
  if (window.lanternRun) charts.replaceChildren(changedChart(window.lanternRun.lanes, words), tokenLines(window.lanternRun.lanes, words));
}

watch("value", show);
document.addEventListener("lantern-run", draw);
show();
draw();
