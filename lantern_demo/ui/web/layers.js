// What lies over the page, such as the settings: Escape puts it away, as do a press beside it and the focus going elsewhere.

const layers = [];

/** Of elements that match `selector` while they are open: `opener(it)` is what opened one, and `close(it)` closes it. */
function layer(selector, opener, close) {
  layers.push({ selector, opener, close });
}

(() => {
  let pressed = null;

  function open() {
    return layers.flatMap((one) => [...document.querySelectorAll(one.selector)].map((it) => ({ ...one, it })));
  }

  const within = ({ it, opener }, target) => it.contains(target) || opener(it)?.contains(target);

  function leave(...targets) {
    for (const one of open()) if (!targets.some((target) => within(one, target))) one.close(one.it);
  }

  // First of all listeners: another may take what was pressed off the page. A drag that ends beside a layer began in it.
  document.addEventListener("pointerdown", ({ target }) => { pressed = target; }, true);
  document.addEventListener("click", ({ target }) => leave(target, pressed), true);
  document.addEventListener("focusin", ({ target }) => leave(target));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.target.getAttribute?.("aria-expanded") === "true") return; // a list that is open in a layer goes first
    const last = open().at(-1);
    if (!last) return;
    const back = last.it.contains(document.activeElement) || document.activeElement === document.body;
    last.close(last.it);
    if (back) last.opener(last.it)?.focus({ preventScroll: true });
  }, true);
})();
