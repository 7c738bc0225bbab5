// The tab "How it works": the panel that tells a step. Its scripts come when it is first seen.

const nothing = el("p", { class: "note", hidden: true }, WORDS.noSteps);
const place = element.querySelector(".how");
let [panel, coming, seen, told] = [null, null, false, null];
place.append(nothing);

const load = () =>
  (coming ??= runScript("panel.js").then(
    () => {
      panel = stepPanel((asked) => server.look(asked));
      place.append(panel.root);
    },
    () => (coming = null),
  ));

/** Tell a step of the run that is shown, once somebody sees it. */
async function follow() {
  const run = window.lanternRun;
  nothing.hidden = run !== null;
  if (panel) panel.root.hidden = run === null;
  if (!seen || !run || run === told) return;
  await load();
  if (panel) panel.root.hidden = window.lanternRun === null;
  if (panel && told !== run && window.lanternRun === run) panel.set((told = run));
}

document.addEventListener("lantern-run", async () => {
  await follow();
  panel?.repaint(); // the pictures are there only now
});
document.addEventListener("lantern-look", async ({ detail: { data, cell } }) => {
  seen = true;
  await follow();
  panel?.open(data, cell);
});
new IntersectionObserver((entries) => {
  seen = entries.at(-1).isIntersecting;
  follow();
}).observe(place);
new ResizeObserver(() => panel?.repaint()).observe(place);
