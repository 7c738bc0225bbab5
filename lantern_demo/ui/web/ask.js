// The prompt in parts, each a list to choose from, and above them what is to be said of the prompt before it is drawn. What is chosen is
// written into the prompt, and what is typed there is read into the lists as far as the model knows its words.

const place = element.querySelector(".builder");
const words = WORDS.prompt;
const MOST = 8; // unknown words that are named
const PAUSE = 500; // ms without a key before something is said of what is being typed

let [book, lists, soon] = [null, {}, 0];
const told = el("p", { class: "told", role: "status" });
const field = () => document.querySelector("#prompt :is(textarea, input)");

function show() {
  clearTimeout(soon);
  place.replaceChildren();
  [book, lists] = [props.value ? openBook(JSON.parse(props.value)) : null, {}];
  place.toggleAttribute("data-none", !book);
  if (!book) return;
  const names = book.nouns.map(({ forms }) => forms[0][0]);
  lists.noun = el("input", { list: "nouns", placeholder: words.any.noun, "aria-label": words.parts.noun, onchange: chooseThing });
  for (const [part, options] of Object.entries(book.parts)) {
    const any = part in words.any ? [el("option", { value: "-1" }, words.any[part])] : [];
    const choices = [...any, ...options.map(([plainest], index) => el("option", { value: index }, plainest))];
    lists[part] = el("select", { "aria-label": words.parts[part], onchange: () => choose(part, Number(lists[part].value)) }, ...choices);
  }
  const { count, ...others } = lists;
  const chips = [count, ...Object.values(others), el("datalist", { id: "nouns" }, ...names.map((name) => el("option", {}, name)))];
  const surprise = el("button", { type: "button", class: "surprise", onclick: anything }, die(), el("span", {}, words.surprise));
  place.append(told, el("div", { class: "parts", role: "group", "aria-label": words.title }, surprise, el("span", { class: "lead" }, words.draws), ...chips));
  follow(field()?.value || worded(book.usual, book), false); // the field may come later, and then with just that
}

function die() {
  const pips = [[5, 5], [11, 5], [8, 8], [5, 11], [11, 11]].map(([cx, cy]) => svg("circle", { cx, cy, r: 1.3, fill: "currentColor" }));
  return svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("rect", { x: 1.5, y: 1.5, width: 13, height: 13, rx: 3, fill: "none", stroke: "currentColor" }), ...pips);
}

function write(prompt) {
  const box = field();
  box.value = prompt;
  box.dispatchEvent(new InputEvent("input", { bubbles: true }));
  follow(prompt, false);
}

function choose(part, index) {
  const { [part]: _, ...said } = readPrompt(book, field().value).said;
  write(worded(index < 0 ? said : { ...said, [part]: index }, book));
}

/** Draw the thing that is typed, under any of its names; for another word the list shows the prompt's thing again. */
function chooseThing() {
  const { noun } = readPrompt(book, lists.noun.value).said;
  if (noun !== undefined) choose("noun", noun);
  const index = readPrompt(book, field().value).said.noun;
  lists.noun.value = book.nouns[index]?.forms[0][0] ?? "";
}

/** Draw any prompt, unless something is being drawn. */
function anything() {
  const pick = (options) => Math.floor(Math.random() * options.length);
  const parts = Object.fromEntries(Object.entries(book.parts).map(([part, options]) => [part, pick(options)]));
  write(worded({ ...parts, noun: pick(book.nouns), count: Math.max(0, parts.count - pick([0, 1, 2])) }, book));
  document.getElementById("draw").click();
}

/** Show in the lists what a prompt says, and tell what is to be told of it: not in the middle of a word, so after a pause while somebody types. */
function follow(prompt, typing) {
  if (!book) return;
  const reading = readPrompt(book, prompt);
  const { said } = reading;
  for (const [part, list] of Object.entries(lists)) {
    const index = said[part] ?? -1;
    if (list !== document.activeElement || part !== "noun") list.value = part === "noun" ? (book.nouns[index]?.forms[0][0] ?? "") : String(index);
    list.classList.toggle("unsaid", index < 0);
  }
  clearTimeout(soon);
  soon = setTimeout(() => told.replaceChildren(...toTell(prompt, reading)), typing ? PAUSE : 0);
}

function toTell(prompt, { said, unknown, number, second }) {
  const offer = nearest(prompt, book);
  if (document.querySelector("#status .error") || document.querySelector("#status .offer")?.textContent === offer) return []; // the status says it already
  const count = [...prompt.trim().replace(/\s+/g, " ")].length;
  if (count > book.most) return [say(words.long, { count, most: book.most })];
  if (!count || (!unknown.length && !second && "noun" in said)) return [];
  const named = unknown.slice(0, MOST).join(", ") + (unknown.length > MOST ? ", \u2026" : ".");
  return [
    ...(unknown.length ? [el("b", {}, say(words.unknown, { words: named })), " "] : []),
    "noun" in said ? (second ? words.second : number ? words.number : words.without) : words.only,
    " ",
    el("button", { type: "button", class: "offer", onclick: () => write(offer) }, offer),
  ];
}

document.addEventListener("click", ({ target }) => {
  const button = target.closest?.("#pick");
  button?.setAttribute("aria-expanded", place.classList.toggle("picking"));
});
document.addEventListener("input", ({ target }) => {
  if (!target.closest?.("#prompt")) return;
  const refusal = document.querySelector("body:not(.lost) #status .error"); // of the prompt as it was
  if (refusal) {
    refusal.className = "status info";
    refusal.replaceChildren(el("p", {}, words.ready));
  }
  follow(target.value, true);
});
place.addEventListener("focusin", ({ target }) => target.scrollIntoView({ block: "nearest", inline: "nearest" }));
document.addEventListener("prompted", ({ detail }) => { if (detail !== document.activeElement?.value) follow(detail, false); });
document.addEventListener("lantern-started", () => {
  new MutationObserver(() => follow(field()?.value ?? "", false)).observe(document.getElementById("status"), { childList: true, subtree: true, attributes: true });
}, { once: true });
// What the status offers is drawn at once.
document.addEventListener("click", ({ target }) => {
  if (!target.matches?.("#status .offer")) return;
  write(target.textContent);
  press(document.getElementById("draw"));
});

// The last words of a run are there a moment before the next one may begin.
function press(button) {
  if (button.disabled) return setTimeout(() => press(button), 50);
  button.focus();
  button.click();
}
watch("value", show);
show();
