// What the page's events do in the browser: each calls a function by its name.

const MOMENT = 50; // ms until Gradio has changed the page
const DOUBLE = 300; // ms between the halves of a double click
const RUN_BUTTONS = "#draw, #stop, #surprise, #repeat, #seeds, #unsure, #twin";
let held; // the id of what had the focus last

addEventListener("focusin", ({ target }) => (held = target.id));
// A press of Back shows the run before.
addEventListener("popstate", () => location.reload());
// A run that the browser brings back has lost the server's answers.
addEventListener("pageshow", ({ persisted }) => {
  if (persisted && document.querySelector("#stop:enabled")) location.reload();
});
// "/" comes to the prompt.
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || typing) return;
  const line = document.querySelector("#prompt :is(textarea, input)");
  event.preventDefault();
  line.focus();
  line.select();
});
// Gradio 6.31 opens its page of the API by the button in its footer, and not by the address.
addEventListener("click", (event) => {
  if (!event.target.closest?.('#top a[href="?view=api"]')) return;
  event.preventDefault();
  document.querySelector("footer .show-api").click();
});

/** How the visitor came, and the name of the tab: a browser may forbid the store that keeps it. */
function cameBy() {
  let name = "";
  try {
    name = sessionStorage.lanternTab ??= crypto.getRandomValues(new Uint32Array(4)).join("-");
  } catch {}
  return [`${performance.getEntriesByType("navigation")[0]?.type ?? ""} ${name}`];
}

// Draw and Stop stand in one place: a key that is held, and the second half of a double click, mean
// neither. Nor does a double click on Surprise mean two prompts, nor two buttons two runs at once.
addEventListener("keydown", (event) => {
  if (event.repeat && event.target.closest?.("#draw, #stop")) event.preventDefault();
});
let pressed = -Infinity;
addEventListener("click", (event) => {
  if (!event.isTrusted || !event.target.closest?.(RUN_BUTTONS)) return;
  if (event.timeStamp - pressed < DOUBLE) event.stopImmediatePropagation();
  pressed = event.timeStamp;
}, true);

/** Draw and Stop stand in one place: who pressed one has the other there. Another button has the
 * focus again that it lost while it was disabled. */
function keepFocus() {
  setTimeout(() => {
    const both = ["draw", "stop", "surprise"].includes(held);
    if (!both && document.activeElement !== document.body) return;
    const next = both ? "#draw:enabled, #stop:enabled" : `button[id="${held}"]`;
    document.querySelector(next)?.focus({ preventScroll: true });
  }, MOMENT);
}

/** Have the server follow the link by which the page was opened. */
function followLink() {
  if (location.search) document.getElementById("linked").click();
}

/** Press Draw if there is a reason to. */
function pressDraw(go) {
  if (go) document.getElementById("draw").click();
}

/** Press Draw from below, where it is out of sight. */
function drawAbove() {
  pressDraw(true);
  scrollTo({ top: 0 });
}

/** Mark the settings that differ from the preset -> the words of the button that draws with them.
 * usual: of each setting its id, its name, and the preset's value. */
function drawWith(usual, values) {
  const changed = usual.flatMap(([id, name, value], i) => {
    const other = values[i] !== value;
    document.getElementById(`knob-${id}`)?.toggleAttribute("data-changed", other);
    return other ? [`${name} ${values[i] ?? ""}`] : [];
  });
  return changed.length ? say(WORDS.drawWith, { settings: changed.join(", ") }) : WORDS.draw;
}

/** Bring the pictures of a twin into sight, and keep them there while the page still grows. */
function showTwin() {
  const show = () => document.getElementById("twin-slider")?.scrollIntoView({ block: "nearest" });
  const growth = new ResizeObserver(show);
  setTimeout(() => growth.observe(document.body), MOMENT);
  setTimeout(() => growth.disconnect(), 3000);
}

/** Press the hidden button of a file that is there now. */
function takeFile() {
  setTimeout(() => document.getElementById("file").click(), MOMENT);
}

/** A press of a button in a gr.HTML selects it. */
function selectable(element, trigger) {
  element.addEventListener("click", ({ target }) => {
    const button = target.closest("button");
    if (button) trigger("select", { index: 0, value: button.dataset.key });
  });
}

/** Fill the place of the panel of look-alikes, once it is seen. */
function showPrice(place) {
  let coming;
  const fill = () => {
    place.append(pricePanel());
    watcher.disconnect();
  };
  const watcher = new IntersectionObserver((entries) => {
    // What did not come is asked for when the place is next seen.
    if (entries.at(-1).isIntersecting)
      coming ??= runScript("price.js").then(fill, () => (coming = null));
  });
  watcher.observe(place);
}
