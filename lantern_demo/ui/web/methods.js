// The methods to choose from, in groups, with a sentence each. What is chosen becomes the component's value.

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
  const one = (method, i) => {
    const box = el("input", { type: "checkbox", value: method.id, checked: view.chosen.includes(method.id), onchange: choose, "aria-label": method.label, "aria-describedby": `method-note-${method.id}` });
    return el("label", { class: "method", style: `--lane: ${method.colour}` }, box, el("span", {}, el("b", {}, method.label), el("small", { id: `method-note-${method.id}` }, method.sentence)));
  };
  place.replaceChildren(el("fieldset", {}, el("legend", {}, view.legend), el("p", { class: "note" }, view.note),
    ...view.groups.map((group) => el("div", { class: "group", role: "group", "aria-label": group.title }, el("p", { class: "group-title" }, group.title), ...group.methods.map(one)))));
}

watch("value", show);
show();
