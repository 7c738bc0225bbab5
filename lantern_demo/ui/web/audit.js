// The audit of losslessness: groups of methods, and behind each method its numbers, a row for every case.

const place = element.querySelector(".audit");

function numbers(name, rows, head) {
  return el("table", {}, el("caption", { class: "spoken" }, name),
    el("thead", {}, el("tr", {}, ...head.map((title) => el("th", { scope: "col" }, title)))),
    el("tbody", {}, ...rows.map(([name, ...values]) => el("tr", {}, el("th", { scope: "row" }, name), ...values.map((value) => el("td", {}, value))))));
}

function show() {
  place.replaceChildren();
  if (!props.value) return;
  const { verdict, ran, head, groups } = JSON.parse(props.value);
  place.append(el("p", {}, el("b", {}, verdict)), el("p", { class: "note" }, ran));
  for (const { title, note, methods } of groups) {
    const folded = methods.map(({ name, verdict: short, rows }) =>
      el("details", {}, el("summary", {}, el("b", {}, name), el("span", {}, short)), numbers(name, rows, head)));
    place.append(el("section", { "aria-label": title }, el("h3", {}, title), el("p", { class: "note" }, note), ...folded));
  }
}

watch("value", show);
show();
