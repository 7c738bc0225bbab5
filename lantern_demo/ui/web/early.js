// While the page starts Gradio gives the fields their first values once more, and the first answer may fill them in, too: what a visitor
// has entered by then stays. A picked example lets go of it.
(() => {
  const IDS = ["prompt", "seed", "lock-seed"];
  const entered = new Map();
  const fieldOf = (id) => document.querySelector(`#${id} :is(textarea, input)`);
  const valueOf = (field) => (field.type === "checkbox" ? field.checked : field.value);
  let started = false;

  function note({ target }) {
    const id = IDS.find((one) => target.closest?.(`#${one}`));
    if (id) entered.set(id, valueOf(target));
  }

  function letGo({ target }) {
    if (target.closest?.("#examples")) entered.clear();
  }

  function keep() {
    for (const [id, value] of entered) {
      const field = fieldOf(id);
      if (!field || valueOf(field) === value) continue;
      if (field.type === "checkbox") field.click();
      else {
        field.value = value;
        field.dispatchEvent(new InputEvent("input", { bubbles: true }));
      }
    }
    if (!started) return requestAnimationFrame(keep);
    document.removeEventListener("input", note, true);
    document.removeEventListener("click", letGo, true);
  }

  document.addEventListener("input", note, true);
  document.addEventListener("click", letGo, true);
  document.addEventListener("lantern-started", () => { started = true; }, { once: true });
  requestAnimationFrame(keep);
})();
