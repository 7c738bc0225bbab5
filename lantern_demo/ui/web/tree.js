// The draft tree of a step as a drawing: what is kept is filled, what is refused crossed out, what was
// not tried hollow.

const [TALL, LEAST, GAP, DEEP, ROOM] = [120, 20, 34, 56, 14]; // the height of a small one, the least and the most between two leaves, a level's width, and what is left around it

/** Where the nodes of a tree stand -> [x, y] by node, and its height. A node stands beside the middle of its children. */
function placesOf(guesses) {
  const below = (node) => guesses.filter(({ parent }) => parent === node);
  const ends = guesses.filter(({ node }) => !below(node).length).length;
  const gap = Math.max(LEAST, Math.min(GAP, (TALL - 2 * ROOM) / Math.max(1, ends - 1)));
  const places = new Map();
  let end = 0;
  const put = (node, depth) => {
    const children = below(node).map((child) => put(child.node, depth + 1));
    const middle = () => (children[0] + children.at(-1)) / 2;
    const y = children.length ? middle() : ROOM + gap * end++;
    places.set(node, [ROOM + DEEP * depth, y]);
    return y;
  };
  put(0, 0);
  return [places, 2 * ROOM + gap * (ends - 1)];
}

/** Draw a step's guesses, each as `look` says: guess, kept, alike, dropped or untried. */
function treeOf(guesses, look) {
  const [places, tall] = placesOf(guesses);
  const wide = Math.max(...[...places.values()].map(([x]) => x)) + ROOM;
  const looks = guesses.map(look);
  const counted = (name) => `${looks.filter((one) => one === name).length} ${WORDS.looks[name]}`;
  const told = [...new Set(looks)].map(counted).join(", ");
  const root = { role: "img", "aria-label": say(WORDS.tree, { told }) };
  const size = { viewBox: `0 0 ${wide} ${tall}`, width: wide, height: tall };
  const lines = guesses.map((guess) => {
    const [[x1, y1], [x2, y2]] = [places.get(guess.parent), places.get(guess.node)];
    return svg("line", { x1, y1, x2, y2, class: look(guess) });
  });
  const nodes = guesses.map((guess) => nodeOf(look(guess), ...places.get(guess.node)));
  const start = svg("circle", { cx: ROOM, cy: places.get(0)[1], r: 5, class: "root" });
  return svg("svg", { ...root, ...size }, ...lines, start, ...nodes);
}

/** A guess: a circle, a look-alike a diamond; a refused one has a cross. */
function nodeOf(look, x, y) {
  const at = `translate(${x} ${y})`;
  if (look === "alike") return svg("path", { d: "M0-9 9 0 0 9-9 0Z", transform: at, class: look });
  const circle = svg("circle", { r: 8 });
  const cross = look === "dropped" ? [svg("path", { d: "M-5-5 5 5M-5 5 5-5" })] : [];
  return svg("g", { transform: at, class: look }, circle, ...cross);
}
