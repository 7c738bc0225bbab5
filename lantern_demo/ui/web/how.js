// The tab "How it works": the panel that tells a step. Its scripts come when it is first seen.

const place = element.querySelector(".how");
let [panel, coming, seen, told] = [null, null, false, null];

const load = () => {
  const script = (loaded, failed) =>
    document.head.append(el("script", { src: "panel.js", onload: loaded, onerror: failed }));
  coming ??= new Promise(script).then(
    () => {
      panel = stepPanel((asked) => server.look(asked));
      place.append(panel.root);
    },
    () => (coming = null),
  );
  return coming;
};

/** Tell a step of the run that is shown, once somebody sees it. */
async function follow() {
  const run = window.lanternRun;
  if (!seen || !run || run === told) return;
  await load();
  if (panel && told !== run) panel.set((told = run));
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
