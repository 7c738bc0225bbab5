// The methods to choose from, in groups, with a sentence each. What is chosen goes into the component's value.

const place = element.querySelector(".methods");

let again;
const own = new Map(); // values that were set here, and when: they come back, late and in order, and are shown already

function show() {
  if (!props.value) return place.replaceChildren();
  if (performance.now() - (own.get(props.value) ?? -Infinity) < 2000) return;
  const view = JSON.parse(props.value);
  const choose = () => {
    const value = JSON.stringify({ ...view, chosen: [...place.querySelectorAll(":checked")].map((box) => box.value) });
    // Of two values in quick succession Gradio may keep the first: the last is handed over once more, as JSON with a blank behind it.
    for (const one of [props.value, value, `${value} `]) own.set(one, performance.now());
    props.value = value;
    clearTimeout(again);
    again = setTimeout(() => { props.value = `${value} `; }, 100);
  };
  const one = (method, i) => {
    const box = el("input", { type: "checkbox", value: method.id, checked: view.chosen.includes(method.id), onchange: choose, "aria-label": method.label, "aria-describedby": `method-note-${method.id}` });
    return el("label", { class: "method", style: `--lane: ${method.colour}` }, box, el("span", {}, el("b", {}, method.label), el("small", { id: `method-note-${method.id}` }, method.sentence)));
  };
  place.replaceChildren(el("fieldset", {}, el("legend", {}, view.legend), el("p", { class: "note" }, view.note),
    ...view.groups.map((group) => el("div", { class: "group", role: "group", "aria-label": group.title }, el("p", { class: "group-title" }, group.title), ...group.methods.map(one)))));
}

watch("value", show);
show();
