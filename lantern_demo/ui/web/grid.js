// A picture of which some tokens are there: covered where nothing is yet, with tokens marked on request.

const answers = new Map(); // by address, what `asked` read there, or null where there is nothing

/** What is read at an address, asked for once; `then` is called when it comes. Without an answer, and
 * while the model loads, the next call asks again. */
function asked(address, read, then) {
  if (!answers.has(address)) {
    answers.set(address, null);
    fetch(address)
      .then((answer) => {
        if (answer.status === 503) throw new Error("not yet");
        return answer.status === 200 ? read(answer) : null;
      })
      .then(
        (found) => {
          answers.set(address, found);
          then();
        },
        () => answers.delete(address),
      );
  }
  return answers.get(address);
}

/** The colours of a model's tokens, [V, 3] bytes, or null. */
const paletteOf = (model, then) =>
  asked(
    `palettes/${encodeURIComponent(model)}`,
    (answer) => answer.arrayBuffer().then((bytes) => new Uint8Array(bytes)),
    then,
  );

/** The patches of a model's tokens in one picture, or null. */
const patchesOf = (model, then) =>
  asked(`patches/${encodeURIComponent(model)}`, (answer) => answer.blob().then(createImageBitmap), then);

/** What a model's tokens look like: patches where it has them, colours, or one colour for all. */
const looksOf = (model, otherwise, then) => ({
  patches: model && patchesOf(model, then),
  palette: model && paletteOf(model, then),
  otherwise,
});

/** The mean colour of a token, or another one where there is no palette. */
const colourOf = (palette, token, otherwise) =>
  palette ? `rgb(${palette.slice(3 * token, 3 * token + 3).join(",")})` : otherwise;

const PATCHES = 64; // in a row of their picture
const EDGE = 3; // pixels of a patch that its neighbours in the compressed picture have tinged

/** Paint a token's own look in a square. */
function paintToken(g, token, [x, y], size, { patches, palette, otherwise }) {
  if (patches) {
    const side = patches.width / PATCHES;
    const [left, top] = cellCorner(token, PATCHES, side);
    const inner = side - 2 * EDGE;
    g.drawImage(patches, left + EDGE, top + EDGE, inner, inner, x, y, size, size);
  } else {
    g.fillStyle = colourOf(palette, token, otherwise);
    g.fillRect(x, y, size, size);
  }
}

/** The colour of what is not painted yet. */
const coverColour = () => getComputedStyle(document.body).getPropertyValue("--replay-cover").trim();

const INK = { e: "#ffffff", r: "#f0a500", t: "#ffffff" };

/** The step that committed a token. */
const stepOf = (lane, token) => countUpTo(lane.committed, token);

/** The last step that a lane had done after so many milliseconds of its own; -1: none. */
const stepAt = ({ milliseconds }, now) => countUpTo(milliseconds, now) - 1;

/** How many tokens were there then. */
const tokensAt = (lane, now) => lane.committed[stepAt(lane, now)] ?? lane.kept;

/** The corner of a cell of a picture. */
const cellCorner = (at, grid, cell) => [(at % grid) * cell, Math.floor(at / grid) * cell];

/** The cell of a picture that an event points at. */
function cellAt(canvas, grid, event) {
  const box = canvas.getBoundingClientRect();
  const at = (offset, size) => Math.min(grid - 1, Math.max(0, Math.floor((offset / size) * grid)));
  return at(event.clientY - box.top, box.height) * grid + at(event.clientX - box.left, box.width);
}

/** Mark a cell with how its token was accepted. */
function drawMark(g, kind, corner, cell) {
  const [x, y] = corner.map((at) => at + cell / 2);
  const unit = cell * 0.24;
  g.lineWidth = Math.max(1, cell * 0.06);
  g.beginPath();
  if (kind === "r") {
    g.moveTo(x, y - 1.35 * unit);
    g.lineTo(x + 1.35 * unit, y);
    g.lineTo(x, y + 1.35 * unit);
    g.lineTo(x - 1.35 * unit, y);
    g.closePath();
  } else g.arc(x, y, kind === "e" ? unit : unit * 0.36, 0, 2 * Math.PI);
  if (kind === "e") {
    g.strokeStyle = "rgba(0,0,0,.75)";
    g.lineWidth *= 2.6;
    g.stroke();
    g.lineWidth /= 2.6;
    g.strokeStyle = INK.e;
    g.stroke();
    return;
  }
  g.fillStyle = INK[kind];
  g.fill();
  g.strokeStyle = "rgba(0,0,0,.8)";
  g.stroke();
}

/** The same mark on a small piece, for legends and lists. */
function markOf(kind) {
  const shape = {
    e: () => svg("circle", { cx: 8, cy: 8, r: 4, class: "ring" }),
    r: () => svg("path", { d: "M8 2.5 13.5 8 8 13.5 2.5 8Z", fill: INK.r }),
    t: () => svg("circle", { cx: 8, cy: 8, r: 1.8, fill: INK.t }),
  }[kind]();
  const piece = svg("rect", { width: 16, height: 16, rx: 3 });
  return svg("svg", { class: "mark", viewBox: "0 0 16 16", "aria-hidden": "true" }, piece, shape);
}

/** Draw a line under the tokens that were kept of another picture. */
function drawKept(g, kept, grid, cell) {
  if (!kept) return;
  const y = (kept / grid) * cell;
  for (const [colour, width] of [["rgba(0,0,0,.7)", 5], ["#ffffff", 2]]) {
    g.fillStyle = colour;
    g.fillRect(0, y - width / 2, grid * cell, width);
  }
}

/** Give a canvas as many pixels as it has on the screen -> pixels a side. */
function fit(canvas) {
  const size = Math.round(canvas.clientWidth * (window.devicePixelRatio || 1));
  if (size && (canvas.width !== size || canvas.height !== size))
    canvas.width = canvas.height = size;
  return size;
}

/** Paint a lane's first `count` tokens. options: cover (a colour); in a lane also fresh (tokens from
 * this one on show their marks), alike (so do all look-alikes) and cell (the lit one, or -1): there the last step's tokens are outlined. */
function paint(canvas, lane, count, grid, options) {
  const size = fit(canvas);
  if (!size) return;
  const g = canvas.getContext("2d");
  const cell = size / grid;
  const corner = (token) => cellCorner(token, grid, cell);
  g.clearRect(0, 0, size, size);
  if (lane.image) g.drawImage(lane.image, 0, 0, size, size);
  else {
    g.fillStyle = "#8a94a3";
    g.fillRect(0, 0, size, size);
  }
  // On a small picture the model's own tokens go without their dots, or there would be nothing but dots.
  const kinds = canvas.clientWidth / grid < 14 ? "er" : "ert";
  const fresh = options.fresh ?? count;
  for (let token = options.alike ? 0 : fresh; token < count; token++)
    if ((token < fresh ? "r" : kinds).includes(lane.kinds[token]))
      drawMark(g, lane.kinds[token], corner(token), cell);
  if (count < grid * grid) {
    // One path for what is covered, or seams of the picture would show between the cells. What is missing of a row is its end.
    g.fillStyle = options.cover;
    g.beginPath();
    for (let row = 0; row < grid; row++) {
      const known = Math.max(0, Math.min(grid, count - row * grid));
      if (known < grid) g.rect(known * cell, row * cell, size, cell + 0.5);
    }
    g.fill();
    drawKept(g, lane.kept, grid, cell);
  }
  if (count < grid * grid && options.cell !== undefined) {
    const since = lane.committed[Math.max(0, countUpTo(lane.committed, count - 1) - 1)] || 0;
    g.strokeStyle = lane.colour;
    g.lineWidth = Math.max(2, cell * 0.14);
    for (let token = Math.min(since, count - 1); token >= lane.kept && token < count; token++) {
      const [x, y] = corner(token);
      g.strokeRect(x + 1, y + 1, cell - 2, cell - 2);
    }
  }
  if (options.cell >= 0) lightCell(g, ...corner(options.cell), cell);
}

/** Give a cell a light edge. */
function lightCell(g, x, y, cell) {
  g.lineWidth = Math.max(3, cell * 0.16);
  g.strokeStyle = "#000000";
  g.strokeRect(x, y, cell, cell);
  g.lineWidth /= 2;
  g.strokeStyle = "#ffffff";
  g.strokeRect(x, y, cell, cell);
}
