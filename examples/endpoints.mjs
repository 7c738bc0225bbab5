// Every endpoint of a running demo once, without any package: node examples/endpoints.mjs [URL]

const base = `${(process.argv[2] ?? "http://127.0.0.1:7860").replace(/\/$/, "")}/gradio_api/call`;

/** Ask, then read the stream of events to its end; the data of the last is the answer. */
async function call(endpoint, parameters) {
  const headers = { "Content-Type": "application/json" };
  const started = await fetch(`${base}/v2/${endpoint}`, { method: "POST", headers, body: JSON.stringify(parameters) });
  if (!started.ok) throw new Error(await started.text());
  const { event_id: id } = await started.json();
  const [event, data] = (await (await fetch(`${base}/${endpoint}/${id}`)).text()).trim().split("\n\n").at(-1).split("\n");
  const answer = JSON.parse(data.replace(/^data: /, ""));
  if (event !== "event: complete") throw new Error(answer?.error ?? "the server gave no reason");
  return answer;
}

const prompt = "two blue box lanterns at dawn";
const [offer] = await call("models", {});
console.log("models:", offer.models.map((model) => model.id).join(", "));

const [drawn, numbers] = await call("draw", { prompt });
console.log("draw:", drawn.url, numbers.steps, "steps");

const [pictures, record] = await call("compare", { prompt, methods: ["vanilla", "eagle1"], seed: 7 });
for (const [method, { speedup }] of Object.entries(record.methods)) console.log("compare:", method, pictures[method].url, `${speedup.toFixed(2)}x`);
