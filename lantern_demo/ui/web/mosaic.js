// A picture that is being drawn: each token as its own patch, until all lanes have arrived.

/** What is known of a lane that draws: `cells` by place, [kind, token]; how many of them are `kept`; the `old` picture, which stays until the first row is there; and the decoded `image`, once it appears, with the `share` of it that is seen. */
const drawnSoFar = (old) => ({ cells: new Map(), kept: 0, fresh: [], old, image: null, share: 0 });

/** Paint it. options: looks (of tokens), cover (a colour where nothing is yet). */
function paintMosaic(canvas, drawn, grid, { looks, cover }) {
  const size = fit(canvas);
  if (!size) return;
  const g = canvas.getContext("2d");
  const cell = size / grid;
  g.fillStyle = cover;
  g.fillRect(0, 0, size, size);
  if (drawn.old && drawn.cells.size < grid) add(drawn.old, 0.25);
  for (const [place, [, token]] of drawn.cells)
    paintToken(g, token, cellCorner(place, grid, cell), cell + 0.5, looks);
  for (const place of drawn.fresh)
    drawMark(g, drawn.cells.get(place)[0], cellCorner(place, grid, cell), cell);
  drawKept(g, drawn.kept, grid, cell);
  if (drawn.image) add(drawn.image, drawn.share);

  function add(picture, share) {
    g.globalAlpha = share;
    g.drawImage(picture, 0, 0, size, size);
    g.globalAlpha = 1;
  }
}
