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
  [book, lists] = [props.value ? JSON.parse(props.value) : null, {}];
  place.toggleAttribute("data-none", !book);
  if (!book) return;
  for (const [part, options] of Object.entries(book.parts)) {
    const choices = [el("option", { value: "" }, words.any[part]), ...options.map(([plainest]) => el("option", {}, plainest))];
    lists[part] = el("select", { "aria-label": words.parts[part], onchange: () => choose(part, lists[part].value) }, ...choices);
  }
  const chips = Object.entries(lists).flatMap(([part, list]) => (part === book.before.at(-1) ? [list, el("span", {}, book.nouns[1])] : [list]));
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

function choose(part, phrase) {
  const { [part]: _, ...said } = readPrompt(book, field().value).said;
  write(worded(phrase ? { ...said, [part]: phrase } : said, book));
}

/** Draw any prompt, unless something is being drawn. */
function anything() {
  const pick = (options) => options[Math.floor(Math.random() * options.length)][0];
  write(worded(Object.fromEntries(Object.entries(book.parts).map(([part, options]) => [part, pick(options)])), book));
  document.getElementById("draw").click();
}

/** Show in the lists what a prompt says, and tell what is to be told of it: not in the middle of a word, so after a pause while somebody types. */
function follow(prompt, typing) {
  if (!book) return;
  const reading = readPrompt(book, prompt);
  for (const [part, list] of Object.entries(lists)) {
    list.value = book.parts[part].find((phrases) => phrases.includes(reading.said[part]))?.[0] ?? "";
    list.classList.toggle("unsaid", !list.value);
  }
  clearTimeout(soon);
  soon = setTimeout(() => told.replaceChildren(...toTell(prompt, reading)), typing ? PAUSE : 0);
}

function toTell(prompt, reading) {
  const unknown = unknownWords(prompt, book);
  const offer = nearest(prompt, book);
  if (document.querySelector("#status .error") || document.querySelector("#status .offer")?.textContent === offer) return []; // the status says it already
  const count = [...prompt.trim().replace(/\s+/g, " ")].length;
  if (count > book.most) return [say(words.long, { count, most: book.most })];
  if (!count || (!unknown.length && sure(reading, book))) return [];
  const named = unknown.slice(0, MOST).join(", ") + (unknown.length > MOST ? ", \u2026" : ".");
  return [
    ...(unknown.length ? [el("b", {}, say(words.unknown, { words: named })), " "] : []),
    lacking(reading),
    " ",
    el("button", { type: "button", class: "offer", onclick: () => write(offer) }, offer),
  ];
}

/** What a prompt should say and does not, or only that there is one without its unknown words. */
function lacking(reading) {
  if (!reading.named) return say(words.only, { noun: book.nouns[1] });
  if (!drawable(reading, book)) return say(words.bare, { noun: book.nouns[1] });
  return sure(reading, book) ? words.without : words.alone;
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
