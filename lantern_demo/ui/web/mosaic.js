// A picture that is being drawn: each token a cell of its mean colour, until the lane arrives.

/** What is known of a lane that draws: `cells` by place, [kind, token]; the decoded `image` once it has arrived; the `old` picture, which stays until the first row is there. */
const drawnSoFar = (old) => ({ cells: new Map(), image: null, fresh: [], old });

/** Paint it. options: palette, cover (a colour where nothing is yet), colour (of the lane). */
function paintMosaic(canvas, drawn, grid, { palette, cover, colour }) {
  const size = fit(canvas);
  if (!size) return;
  const g = canvas.getContext("2d");
  if (drawn.image) return g.drawImage(drawn.image, 0, 0, size, size);
  const cell = size / grid;
  g.fillStyle = cover;
  g.fillRect(0, 0, size, size);
  if (drawn.old && drawn.cells.size < grid) {
    g.globalAlpha = 0.25;
    g.drawImage(drawn.old, 0, 0, size, size);
    g.globalAlpha = 1;
  }
  for (const [place, [, token]] of drawn.cells) {
    g.fillStyle = colourOf(palette, token, colour);
    g.fillRect(...cellCorner(place, grid, cell), cell + 0.5, cell + 0.5);
  }
  for (const place of drawn.fresh)
    drawMark(g, drawn.cells.get(place)[0], cellCorner(place, grid, cell), cell);
}
