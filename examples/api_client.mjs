// Compare methods from JavaScript, without any package: node examples/api_client.mjs [URL] [PROMPT] [METHODS] [SEED]
// The same code runs in a browser; there, drop the last lines and show the addresses of the pictures in <img> elements.

/** Call an endpoint and wait for its last answer; `tell` gets the ones before it. */
export async function call(url, endpoint, parameters, tell = () => {}) {
  const base = `${url.replace(/\/$/, "")}/gradio_api/call`;
  const headers = { "Content-Type": "application/json" };
  const started = await fetch(`${base}/v2/${endpoint}`, { method: "POST", headers, body: JSON.stringify(parameters) });
  if (!started.ok) throw new Error(await started.text());
  const { event_id: id } = await started.json();
  const stream = await fetch(`${base}/${endpoint}/${id}`);
  let text = "";
  let answer = null;
  for await (const chunk of stream.body.pipeThrough(new TextDecoderStream())) {
    text += chunk;
    const events = text.split("\n\n");
    text = events.pop(); // the last one may still be on its way
    for (const event of events) {
      const [kind, data] = event.split("\n").map((line) => line.replace(/^(event|data): /, ""));
      if (kind === "error") throw new Error(JSON.parse(data)?.error ?? "the server gave no reason");
      if (kind === "generating" || kind === "complete") answer = JSON.parse(data);
      if (kind === "generating") tell(answer);
    }
  }
  return answer;
}

const [url = "http://127.0.0.1:7860", prompt = "three red round lanterns over a lake at dusk", methods = "vanilla,lantern++", seed = "7"] = process.argv.slice(2);
const [offer] = await call(url, "model", {});
console.log(`model: ${offer.model.id}`);
const [pictures, record] = await call(url, "compare", { prompt, methods: methods.split(","), seed: Number(seed) }, ([, part]) => {
  for (const [method, { tokens }] of Object.entries(part.progress ?? {})) console.error(`${method}: ${tokens} tokens`);
});
for (const [method, run] of Object.entries(record.methods)) {
  const speedup = run.speedup === undefined ? "no baseline" : `${run.speedup.toFixed(2)}x`;
  console.log(`${method}: ${run.decode_seconds.toFixed(3)} s, ${speedup}, ${pictures[method].url}`);
}
