// The prompt: chips that edit its line of text, and what comes of it, told while it is typed. The
// server alone reads words: `server.hear` says what it makes of them.

const PAUSE = 150; // ms without a key until the server is asked
const place = element.querySelector(".chips");
const chips = [...place.querySelectorAll("[data-part]")];
const bars = [...place.querySelectorAll("[role=toolbar]")];
const told = place.querySelector(".heard");
const every = place.querySelector(".all");
const line = () => document.querySelector("#prompt :is(textarea, input)");
// prompt: the latest that is heard; typed: whether a visitor has written since Draw
const state = { prompt: props.value, typed: false, pressed: null, timer: 0 };

/** Light the chips of a prompt, and tell what of it is not drawn. */
function show({ prompt, parts, lanterns, leftOut, why, drawn }) {
  state.prompt = prompt;
  for (const chip of chips) {
    const { part, phrase } = chip.dataset;
    const lit = parts[part] === phrase;
    if (lit && part === "thing" && chip.ariaPressed === "false") reveal(chip);
    chip.setAttribute("aria-pressed", lit);
    if (["count", "colour", "shape"].includes(part)) chip.parentNode.hidden = !lanterns;
  }
  bars.forEach(enter);
  const words = leftOut.flatMap(([word, near], at) => [at ? ", " : "", ...wordOf(word, near)]);
  told.replaceChildren(
    ...(words.length ? [`${WORDS.leftOut} `, ...words, ". "] : []),
    [why, prompt.trim() && drawn && say(WORDS.draws, { drawn })].filter(Boolean).join(" "),
  );
  tell();
}

/** A word that is left out, and the chip of the thing that it comes nearest to. */
function wordOf(word, near) {
  const chip = chips.find(({ dataset }) => dataset.phrase === near);
  const other = chip && button("", chip.textContent, () => press(chip));
  return [el("s", {}, word), ...(other ? [` (${WORDS.nearest} `, other, ")"] : [])];
}

/** What is heard replaces the status, which is that of another prompt, until Draw is pressed. */
function tell() {
  document.body.classList.toggle("hearing", state.typed && told.textContent !== "");
}

/** Ask what comes of a prompt, of one with a chip that is pressed. An answer counts as long as the
 * line says what was asked; Gradio gives none where it could not ask. */
async function hear(prompt, { part, phrase } = {}) {
  const found = await server.hear({ prompt, part, phrase });
  return line()?.value === prompt ? found : null;
}

/** Hear a prompt once nobody types any more. The one that a chip wrote is heard already. */
function follow() {
  clearTimeout(state.timer);
  const prompt = props.value ?? "";
  if (prompt === state.prompt) return;
  state.timer = setTimeout(async () => {
    const found = await hear(prompt);
    if (found) show({ ...found, prompt });
  }, PAUSE);
}

/** Write what a chip says into the line. Chips are pressed one after the other. */
function press(chip) {
  const after = async () => {
    const found = await hear(line().value, chip.dataset);
    if (!found) return;
    state.typed = true;
    show(found);
    line().value = found.prompt;
    line().dispatchEvent(new Event("input", { bubbles: true }));
  };
  const mine = Promise.resolve(state.pressed).then(after);
  state.pressed = mine;
  mine.finally(() => (state.pressed === mine ? (state.pressed = null) : 0));
}

const shown = (bar) => [...bar.querySelectorAll("[data-part]:not([hidden] *)")];

/** Let Tab reach one chip of a row. */
function reach(chip) {
  for (const one of chip.closest("[role=toolbar]").querySelectorAll("[data-part]"))
    one.tabIndex = one === chip ? 0 : -1;
}

/** Let Tab reach the first lit chip of a row, or else its first. */
function enter(bar) {
  const all = shown(bar);
  reach(all.find((chip) => chip.ariaPressed === "true") ?? all[0]);
}

/** Scroll the row of a chip, and nothing else, until the chip is seen. */
function reveal(chip) {
  const bar = chip.closest("[role=toolbar]");
  const [box, frame] = [chip.getBoundingClientRect(), bar.getBoundingClientRect()];
  if (box.left < frame.left || box.right > frame.right)
    bar.scrollLeft += box.left - frame.left - (frame.width - box.width) / 2;
}

/** The arrow keys go through a row. */
function steer(event) {
  const bar = event.currentTarget;
  const all = shown(bar);
  const at = all.indexOf(event.target);
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key];
  if (to === undefined || at < 0) return;
  event.preventDefault();
  all[(to + all.length) % all.length].focus();
}

for (const bar of bars) {
  bar.addEventListener("keydown", steer);
  bar.addEventListener("focusin", ({ target }) => target.dataset.part && reach(target));
}
for (const chip of chips) chip.addEventListener("click", () => press(chip));
every.addEventListener("click", () => {
  const open = every.getAttribute("aria-expanded") === "false";
  every.setAttribute("aria-expanded", open);
});
// What nobody typed is there to be replaced.
document.addEventListener("focusin", ({ target }) => {
  if (target === line() && !state.typed) line().select();
});
document.addEventListener("input", ({ target }) => {
  if (target === line()) state.typed = true;
});
// Draw waits for a chip that is pressed, whose words are not in the line yet.
document.addEventListener("click", (event) => {
  const pressed = event.target.closest?.("#draw, #surprise, #runs button");
  if (!pressed) return;
  state.typed = false;
  tell();
  if (pressed.id !== "draw" || !state.pressed) return;
  event.stopImmediatePropagation();
  state.pressed.then(() => setTimeout(() => pressed.click()));
}, true);
document.addEventListener("keydown", (event) => {
  if (event.target !== line() || event.key !== "Enter") return;
  state.typed = false;
  tell();
});
bars.forEach(enter);
line()?.setAttribute("aria-keyshortcuts", "/");
watch("value", follow);
