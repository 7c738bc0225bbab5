// The page without a server: recorded races, their look-alikes decoded ahead, and the quiz, all from files beside this one. The components'
// own scripts run here as they do in Gradio's page: each gets its element, its value, and what tells it of a new one.

const components = {};

/** An object of a file that is packed. A host may unpack it on the way. */
async function unpacked(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(WORDS.extraMissing);
  const bytes = await answer.arrayBuffer();
  const packed = new Uint8Array(bytes, 0, 2).join() === "31,139";
  return new Response(packed ? new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")) : bytes).json();
}

const looks = {}; // by race

/** What the server's look at a place would answer, of those that were decoded ahead. */
async function look(asked) {
  const { name, lanes } = window.lanternRun;
  const lane = lanes.find((one) => one.tokens === asked.tokens);
  looks[name] ??= unpacked(`looks/${name}.json.gz`).catch((fault) => { delete looks[name]; throw fault; });
  return (await looks[name])[lane.id]?.[asked.cell] ?? { error: WORDS.notAhead };
}

function component(id, run) {
  const watchers = [];
  const props = { value: "" };
  components[id] = (value) => { props.value = value; watchers.forEach((told) => told()); };
  run(document.getElementById(id), props, (_, { index }) => race(index), (_, told) => watchers.push(told), { look });
}

async function race(index) {
  try {
    components.stage(JSON.stringify(await unpacked(`races/${RACES[index]}.json.gz`)));
  } catch (fault) {
    document.querySelector("#stage .hint").textContent = fault.message;
  }
}

function begin(cards) {
  components.examples(JSON.stringify(cards));
  race(0);
}

/** As the system has it, or as the address asks: what Gradio's page does. */
function themed() {
  const asked = new URLSearchParams(location.search).get("__theme");
  document.body.classList.toggle("dark", asked ? asked === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  document.dispatchEvent(new CustomEvent("themed"));
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
