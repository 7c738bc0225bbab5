// Which one took the shortcut? Pairs to tell apart, one after the other, and at the end what was right, and what was measured.

lanternExtras.quiz = async () => {
  const answer = await fetch("extras/quiz.json");
  if (!answer.ok) throw new Error(words.missing);
  const { pairs, drawn, measured } = await answer.json();
  const told = el("p", { "aria-live": "polite" });
  const [pair, buttons, asked] = [el("div", { class: "pair" }), el("div", { class: "buttons" }), el("p")];
  const box = dialog(words.title, asked, pair, told, buttons);
  let [at, right] = [0, 0];

  function ask() {
    const { prompt, pictures } = pairs[at];
    asked.textContent = say(words.question, { number: at + 1, of: pairs.length, prompt });
    told.textContent = words.hint;
    buttons.replaceChildren();
    const choices = pictures.map(({ method, picture }, side) => el("button", { type: "button", "data-shortcut": null, onclick: () => guess(side) },
      el("img", { src: picture, alt: say(words.alt, { side: words.sides[side], prompt }) }), el("span", {}, words.sides[side])));
    pair.replaceChildren(...choices);
    choices[0].focus();
  }

  function guess(side) {
    const { pictures } = pairs[at];
    const shortcut = pictures.findIndex(({ method }) => method === "lantern++");
    right += Number(side === shortcut);
    told.textContent = say(side === shortcut ? words.right : words.wrong, { side: words.sides[shortcut].toLowerCase() });
    [...pair.children].forEach((choice, i) => {
      choice.disabled = true;
      choice.toggleAttribute("data-shortcut", i === shortcut);
      choice.querySelector("span").textContent = words.methods[pictures[i].method];
    });
    const next = el("button", { type: "button", class: "first", onclick: at + 1 < pairs.length ? () => { at += 1; ask(); } : end }, at + 1 < pairs.length ? words.next : words.end);
    buttons.replaceChildren(next);
    next.focus();
  }

  function end() {
    asked.textContent = "";
    told.replaceChildren(el("span", { class: "score" }, say(words.score, { right, of: pairs.length, chance: pairs.length / 2 })));
    pair.replaceChildren();
    buttons.replaceChildren(el("div", {}, ...measured.map((fact) => el("p", {}, fact)), el("p", { class: "note" }, drawn)));
    box.querySelector(".close").focus();
  }

  ask();
};
