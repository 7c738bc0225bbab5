// The race as a short video that a visitor can send on. It is drawn and recorded in the browser, on the clock that is chosen; where a browser
// cannot record, the last picture of it is saved instead.

const [WIDE, HIGH, EDGE] = [1280, 720, 40];
const [BEFORE, PLAYED, AFTER] = [400, 6000, 2000]; // ms that the race stands, is played, and stands at its end
const TYPES = ["video/mp4;codecs=avc1.42E01F", "video/mp4", "video/webm;codecs=vp9", "video/webm;codecs=vp8", "video/webm"];
const FONT = "ui-sans-serif, system-ui, sans-serif";

/** Text that ends with dots where it would be wider than `most`. */
function line(g, text, x, y, most) {
  let shown = text;
  while (shown.length > 1 && g.measureText(shown).width > most) shown = `${shown.slice(0, -2).trimEnd()}\u2026`;
  g.fillText(shown, x, y);
}

/** A lane's picture as far as it is drawn at a count of tokens, and edges around those that came last. */
function picture(g, { data }, count, grid, x, y, size) {
  const cell = size / grid;
  if (data.image) g.drawImage(data.image, x, y, size, size);
  g.fillStyle = "#1e293b";
  data.rank.forEach((rank, token) => { if (rank >= count) g.fillRect(x + (token % grid) * cell, y + Math.floor(token / grid) * cell, cell + 0.5, cell + 0.5); });
  if (count >= data.rank.length) return;
  const since = data.committed[Math.max(0, countUpTo(data.committed, count - 1) - 1)] || 0;
  g.strokeStyle = data.colour;
  g.lineWidth = 3;
  data.rank.forEach((rank, token) => { if (rank >= Math.min(since, count - 1) && rank < count) g.strokeRect(x + (token % grid) * cell + 1, y + Math.floor(token / grid) * cell + 1, cell - 2, cell - 2); });
}

/** The whole race at a time of its clock. */
function frame(g, race, now) {
  const { lanes, grid, clock } = race;
  const large = lanes.filter((lane) => lane.data.lead);
  const rest = lanes.filter((lane) => !lane.data.lead);
  const gap = 30;
  const size = Math.min(390, (WIDE - 2 * EDGE - gap * (large.length - 1)) / large.length);
  const left = (WIDE - large.length * size - gap * (large.length - 1)) / 2;
  g.fillStyle = "#0b1220";
  g.fillRect(0, 0, WIDE, HIGH);
  g.textAlign = "left";
  g.fillStyle = "#f8fafc";
  g.font = `700 38px ${FONT}`;
  line(g, race.headline, EDGE, 62, WIDE - 2 * EDGE);
  g.fillStyle = "#cbd5e1";
  g.font = `24px ${FONT}`;
  line(g, race.prompt, EDGE, 100, WIDE - 2 * EDGE);
  large.forEach((lane, i) => {
    const { data } = lane;
    const [x, y, end] = [left + i * (size + gap), 124, data.times.at(-1)];
    const done = now >= end;
    picture(g, lane, race.tokensAt(data, now), grid, x, y, size);
    g.fillStyle = data.colour;
    g.fillRect(x, y + size + 8, size * Math.min(1, race.tokensAt(data, now) / data.tokens.length), 8);
    g.fillStyle = "#f8fafc";
    g.font = `700 30px ${FONT}`;
    g.fillText(data.label, x, y + size + 52);
    g.font = `26px ${FONT}`;
    g.fillText(clock.read(Math.min(now, end)), x, y + size + 88);
    g.textAlign = "right";
    g.font = `700 32px ${FONT}`;
    if (done && lane.gained) g.fillText(times(lane.gained), x + size, y + size + 88);
    g.textAlign = "left";
  });
  g.fillStyle = "#cbd5e1";
  g.font = `22px ${FONT}`;
  line(g, rest.map(({ data }) => `${data.label} ${clock.read(Math.min(now, data.times.at(-1)))}`).join("   \u00b7   "), EDGE, 648, WIDE - 2 * EDGE);
  g.font = `18px ${FONT}`;
  line(g, race.told, EDGE, 690, WIDE - 2 * EDGE);
}

/** The race played once, recorded -> a Blob of one of TYPES. */
function recorded(canvas, race, type) {
  return new Promise((done, failed) => {
    const parts = [];
    const recorder = new MediaRecorder(canvas.captureStream(30), { mimeType: type, videoBitsPerSecond: 4_000_000 });
    recorder.ondataavailable = ({ data }) => data.size && parts.push(data);
    recorder.onerror = ({ error }) => failed(error);
    recorder.onstop = () => done(new Blob(parts, { type: type.split(";")[0] }));
    recorder.start();
    const began = performance.now();
    const g = canvas.getContext("2d");
    (function next() {
      const past = performance.now() - began;
      frame(g, race, race.total * Math.min(1, Math.max(0, past - BEFORE) / PLAYED));
      if (!canvas.isConnected || past > BEFORE + PLAYED + AFTER) recorder.stop();
      else setTimeout(next, 33);
    })();
  });
}

lanternExtras.clip = async (race) => {
  const canvas = el("canvas", { width: WIDE, height: HIGH, role: "img", "aria-label": race.headline });
  const told = el("p", { role: "status" }, words.recording);
  const [shown, buttons] = [el("div", {}, canvas), el("div", { class: "buttons" })];
  const box = dialog(words.title, shown, told, buttons);
  const type = window.MediaRecorder && canvas.captureStream ? TYPES.find((one) => MediaRecorder.isTypeSupported(one)) : undefined;
  frame(canvas.getContext("2d"), race, type ? 0 : race.total);
  const blob = type ? await recorded(canvas, race, type) : await new Promise((done) => canvas.toBlob(done));
  if (!box.isConnected) return;
  const [address, file] = [URL.createObjectURL(blob), `lantern-race.${blob.type.split("/")[1]}`];
  box.addEventListener("close", () => URL.revokeObjectURL(address));
  if (type) shown.replaceChildren(el("video", { src: address, controls: true, loop: true, muted: true, playsinline: true, "aria-label": race.headline }));
  told.textContent = say(type ? words.done : words.still, { size: Math.max(1, Math.round(blob.size / 1024)) });
  const save = el("a", { class: "button first", href: address, download: file }, say(words.save, { file }));
  const whole = new File([blob], file, { type: blob.type });
  const sends = navigator.canShare?.({ files: [whole] });
  buttons.replaceChildren(save, ...(sends ? [el("button", { type: "button", onclick: () => navigator.share({ files: [whole], text: race.headline }).catch(() => {}) }, words.send)] : []));
  save.focus();
};
