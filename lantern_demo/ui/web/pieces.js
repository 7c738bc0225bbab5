// What a token looks like in a place of a picture: decoded by the server, or cut from the finished
// picture, or its own patch.

const SIDE = 3; // cells a side of a square around a piece, as the server decodes it

/** Where the square around a piece begins: at an edge the piece is not in its middle. */
function cornerOf(place, grid) {
  const within = (at) => Math.min(Math.max(at - 1, 0), grid - SIDE);
  return [within(place % grid), within(Math.floor(place / grid))];
}

/**
 * Paint the square around a piece -> x, y and size of the piece itself in it. source: the lane, its
 * grid, the decoded strip or null, and looks() of tokens, where there is neither.
 */
function paintPiece(g, size, { place, token, square }, { lane, grid, strip, looks }) {
  const [column, row] = cornerOf(place, grid);
  const cell = size / SIDE;
  const x = ((place % grid) - column) * cell;
  const y = (Math.floor(place / grid) - row) * cell;
  if (strip && square >= 0) {
    const side = strip.height;
    g.drawImage(strip, square * side, 0, side, side, 0, 0, size, size);
  } else if (token === lane.tokens[place] && lane.image) {
    const from = lane.image.width / grid;
    const [left, top, side] = [column, row, SIDE].map((cells) => cells * from);
    g.drawImage(lane.image, left, top, side, side, 0, 0, size, size);
  } else paintToken(g, token, [x, y], cell, looks());
  return [x, y, cell];
}

/** Paint a piece in its place of a large picture, without what is around it. */
function paintInPlace(g, piece, [x, y, cell], source) {
  const [column, row] = cornerOf(piece.place, source.grid);
  g.save();
  g.beginPath();
  g.rect(x, y, cell, cell);
  g.clip();
  g.translate(column * cell, row * cell);
  paintPiece(g, SIDE * cell, piece, source);
  g.restore();
}

/** Outline a piece; `crossed` strikes it out. */
function outline(g, [x, y, cell], { colour, width = 3, dashed = false, crossed = false }) {
  const lines = () => {
    g.strokeRect(x + 1, y + 1, cell - 2, cell - 2);
    if (!crossed) return;
    g.beginPath();
    g.moveTo(x, y);
    g.lineTo(x + cell, y + cell);
    g.moveTo(x + cell, y);
    g.lineTo(x, y + cell);
    g.stroke();
  };
  g.save();
  [g.strokeStyle, g.lineWidth] = ["rgba(0, 0, 0, .7)", width + 1];
  lines();
  [g.strokeStyle, g.lineWidth] = [colour, width];
  if (dashed) g.setLineDash([cell / 5, cell / 8]);
  lines();
  g.restore();
}

/** A small picture of a piece in its place, outlined. */
function patch(piece, source, colour) {
  const size = 144;
  const label = say(WORDS.patch, { token: piece.token, place: piece.place + 1 });
  const shape = { width: size, height: size, role: "img", "aria-label": label };
  const canvas = el("canvas", shape);
  const g = canvas.getContext("2d");
  outline(g, paintPiece(g, size, piece, source), { colour, width: 4 });
  return canvas;
}
