// The server is gone, during a run or between two. Gradio then takes no press any more, asks the server for its id every two seconds, and
// reloads the page as soon as that is answered, with which all that was typed and drawn would be gone. So its question is asked here and
// the answer kept from it: the page says what happened, and offers the reload when the server is back.
(() => {
  const ask = window.fetch;
  let told = null;

  window.fetch = async (asked, ...options) => {
    if (!String(asked.url ?? asked).endsWith("/app_id")) return ask(asked, ...options);
    tell(await ask(asked, ...options).then((answer) => answer.ok, () => false));
    throw new TypeError("the page reloads when its visitor wants it to");
  };

  function tell(back) {
    if (back === told) return;
    if (told === null) leave();
    told = back;
    const line = document.querySelector("#status .status");
    line.className = `status ${back ? "info" : "error"}`;
    line.setAttribute("role", "alert");
    line.replaceChildren(el("p", {}, back ? WORDS.back : WORDS.lost), ...(back ? [el("button", { type: "button", onclick: reload }, WORDS.reload)] : []));
  }

  /** Nothing is being drawn any more, and nothing can be. */
  function leave() {
    if (document.body.classList.contains("racing")) {
      document.querySelector("#stage .source").textContent = WORDS.lostRace;
      document.querySelector("#stage .source").className = "source";
      for (const lane of document.querySelectorAll('#stage :is([data-phase="waiting"], [data-phase="drawing"])')) lane.dataset.phase = "stopped";
    }
    document.body.classList.remove("racing");
    document.body.classList.add("lost");
    for (const button of document.querySelectorAll("#draw, #stop")) button.disabled = true;
  }

  /** To a fresh page with what the form asks for. The settings that the address names stay; a run of a server that ended is no more. */
  function reload() {
    const form = new URLSearchParams(location.search);
    const set = (name, value) => (value ? form.set(name, value) : form.delete(name));
    form.delete("run");
    set("prompt", document.querySelector("#prompt :is(textarea, input)")?.value);
    set("methods", [...document.querySelectorAll(".method input:checked")].map((box) => box.value).join(","));
    set("seed", document.querySelector("#seed input")?.value);
    location.assign(`${location.pathname}?${form}`);
  }
})();
