// Small tools of the page's own components. Text gets into the page as text only, never as markup.

/** An HTML element: attributes, `onevent` listeners, children that are nodes or text. */
function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false)
      node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** An element of a drawing. */
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** A button: its class, its words, and what a press does. */
const button = (name, text, onclick) =>
  el("button", { type: "button", class: name, onclick }, text);

const SAID = 2000; // ms that a button says what came of a press

/** Let a button say what came of its press, for a moment. */
function answerOn(made, told, usual) {
  made.textContent = told;
  setTimeout(() => (made.textContent = usual), SAID);
}

/** A sentence with {names} replaced. */
function say(sentence, values) {
  return sentence.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** Copy a text, and return whether that is done. Only a secure address has a clipboard; elsewhere a
 * selection is copied. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const before = document.activeElement;
    const field = el("textarea", { class: "spoken" }, text);
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    before?.focus({ preventScroll: true });
    return done;
  }
}

/** Run a script of the server. */
const runScript = (src) =>
  new Promise((onload, onerror) => document.head.append(el("script", { src, onload, onerror })));

/** The picture of an address, once it can be drawn. */
async function imageAt(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  return image;
}

/** "1 guess", "3 guesses": words are [of one, of several]. */
const counting = (count, [one, several]) => say(count === 1 ? one : several, { count });

const seconds = (milliseconds, digits = 2) => `${(milliseconds / 1000).toFixed(digits)}\u00a0s`;
/** A probability with as many digits as say something. */
const mass = (p) => (p === 0 ? "0" : p < 0.1 ? String(Number(p.toPrecision(2))) : p.toFixed(3));
const summed = (parts, sum = 0) => parts.map((part) => (sum += part));
const times = (speedup, digits = 2) => `${speedup.toFixed(digits)}\u00d7`;

/** How many entries of a rising list are at most `value`. */
function countUpTo(list, value) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}
