// A picture that is being drawn: each token a cell of its mean colour the moment it is told, and under the decoded picture once that is there.

const palettes = new Map(); // by model, [V, 3] bytes, or null where there are none

/** The colours of a model's tokens, asked for once; `then` is called when they come. */
function paletteOf(model, then) {
  if (!palettes.has(model)) {
    palettes.set(model, null);
    fetch(`palettes/${encodeURIComponent(model)}`)
      .then((answer) => (answer.ok ? answer.arrayBuffer() : null))
      .then(
        (bytes) => {
          palettes.set(model, bytes && new Uint8Array(bytes));
          then();
        },
        () => {},
      );
  }
  return palettes.get(model);
}

/** The mean colour of a token, or another one where there is no palette. */
const colourOf = (palette, token, otherwise) =>
  palette ? `rgb(${palette.slice(3 * token, 3 * token + 3).join(",")})` : otherwise;

/** What is known of a lane that draws: `cells` by place, [kind, token]; a decoded `image`, and `sharp`, the places that it shows; the `old` picture, which stays until the first row is there. */
const drawnSoFar = (old) => ({ cells: new Map(), image: null, sharp: new Set(), fresh: [], old });

/** Paint it. options: palette, cover (a colour where nothing is yet), colour (of the lane). */
function paintMosaic(canvas, drawn, grid, { palette, cover, colour }) {
  const size = fit(canvas);
  if (!size) return;
  const g = canvas.getContext("2d");
  const cell = size / grid;
  const at = (place) => [(place % grid) * cell, Math.floor(place / grid) * cell];
  g.fillStyle = cover;
  g.fillRect(0, 0, size, size);
  if (drawn.old && drawn.cells.size < grid) {
    g.globalAlpha = 0.25;
    g.drawImage(drawn.old, 0, 0, size, size);
    g.globalAlpha = 1;
  }
  for (const [place, [, token]] of drawn.cells) {
    if (drawn.sharp.has(place)) continue;
    g.fillStyle = colourOf(palette, token, colour);
    const [x, y] = at(place);
    g.fillRect(x, y, cell + 0.5, cell + 0.5);
  }
  if (drawn.image) {
    // One path for all that it shows, or there would be seams between the cells.
    g.save();
    g.beginPath();
    for (const place of drawn.sharp) g.rect(...at(place), cell, cell);
    g.clip();
    g.drawImage(drawn.image, 0, 0, size, size);
    g.restore();
  }
  for (const place of drawn.fresh) {
    const [x, y] = at(place);
    drawMark(g, drawn.cells.get(place)[0], x + cell / 2, y + cell / 2, cell);
  }
}
