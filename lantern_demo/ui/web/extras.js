// What only some visitors ask for comes when they do: its code, its styles and its words.

const lanternExtras = {}; // what the fetched scripts bring, by name
const fetched = {};

/** What a script of `extras/` brings. Rejects where it cannot be fetched; the next press asks again. */
function extra(name) {
  const load = (tag, attributes) => new Promise((done, failed) => document.head.append(el(tag, { ...attributes, onload: done, onerror: failed })));
  fetched.style ??= load("link", { rel: "stylesheet", href: "extras/style.css" });
  fetched[name] ??= Promise.all([fetched.style, load("script", { src: `extras/${name}.js` })]).catch((fault) => {
    delete fetched.style;
    delete fetched[name];
    throw fault;
  });
  return fetched[name].then(() => lanternExtras[name]);
}

/** A dialog over the page, which goes when it is closed. */
function dialog(title, ...content) {
  const box = el("dialog", { class: "extra", "aria-labelledby": "extra-title", onclose: () => box.remove() },
    el("header", {}, el("h2", { id: "extra-title" }, title), el("button", { type: "button", class: "close", "aria-label": WORDS.close, onclick: () => box.close() }, "\u2715")), ...content);
  document.body.append(box);
  box.showModal();
  return box;
}
