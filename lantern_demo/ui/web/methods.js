// Methods to choose from, with a sentence each. What is chosen becomes the component's value. Those that stand in the page are folded.

const place = element.querySelector(".methods");

let soon;
const own = new Map(); // values that were set here, and when: they come back, late and in order, and are shown already

function show() {
  if (!props.value) return place.replaceChildren();
  if (performance.now() - (own.get(props.value) ?? -Infinity) < 2000) return;
  const view = JSON.parse(props.value);
  // Draw reads the boxes themselves. The value only has to follow, so that the server's next one is known for another: once, after the last
  // of several quick choices.
  const hand = () => {
    const value = JSON.stringify({ ...view, chosen: [...place.querySelectorAll(":checked")].map((box) => box.value) });
    own.set(value, performance.now());
    props.value = value;
  };
  const choose = () => { clearTimeout(soon); soon = setTimeout(hand, 100); };
  clearTimeout(soon);
  const one = (method) => {
    const box = el("input", { type: "checkbox", value: method.id, checked: view.chosen.includes(method.id), onchange: choose, "aria-label": method.label, "aria-describedby": `method-note-${method.id}` });
    return el("label", { class: "method", style: `--lane: ${method.colour}` }, box, el("span", {}, el("b", {}, method.label), el("small", { id: `method-note-${method.id}` }, method.sentence)));
  };
  const [note, boxes] = [el("p", { class: "note" }, view.note), el("div", { class: "group" }, ...view.methods.map(one))];
  if (!view.draw) return place.replaceChildren(el("fieldset", {}, el("legend", {}, view.legend), note, boxes));
  const draw = el("button", { type: "button", class: "draw-others", onclick: drawInView }, view.draw);
  place.replaceChildren(el("details", { class: "fold", open: Boolean(place.firstChild?.open) }, el("summary", {}, view.legend), note, el("div", { role: "group", "aria-label": view.legend }, boxes), draw));
}

watch("value", show);
show();
