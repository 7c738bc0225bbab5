// The examples: a small picture and its prompt each, one click to show how it was recorded. The mark stays as long as the prompt does.

const place = element.querySelector(".cards");
const words = WORDS;
let [picked, cards] = [-1, []];

function mark(at) {
  picked = at;
  place.querySelectorAll(".card").forEach((card, i) => card.setAttribute("aria-pressed", String(i === at)));
}

function show() {
  place.replaceChildren();
  if (!props.value) return;
  const view = JSON.parse(props.value);
  cards = view.cards;
  const row = el("div", { class: "card-row", role: "group", "aria-label": words.cardsTitle });
  place.append(row);
  for (const [i, card] of cards.entries()) {
    row.append(el("button", { type: "button", class: "card", "aria-label": say(words.showCard, { prompt: card.prompt }), onclick: () => {
      mark(i);
      trigger("pick", { index: i });
    } }, card.picture ? el("img", { src: card.picture, alt: "", width: 28, height: 28 }) : null, el("span", {}, card.prompt)));
  }
  mark(view.picked);
  const field = document.querySelector("#prompt :is(textarea, input)");
  if (field) follow(field.value); // it may have been edited before the examples were there
}

// An example whose prompt it is no longer is no longer picked.
function follow(prompt) {
  if (picked >= 0 && cards[picked].prompt !== prompt) mark(-1);
}

document.addEventListener("prompted", ({ detail }) => follow(detail));
watch("value", show);
show();
