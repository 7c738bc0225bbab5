// The examples: a small picture each, one click to show how it was recorded. The mark stays as long as the prompt does.

const place = element.querySelector(".cards");
const words = WORDS;
let cards = [];

function mark(at) {
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
    } }, el("img", { src: card.picture, alt: "", width: 48, height: 48 })));
  }
  mark(view.picked);
  const field = document.querySelector("#prompt :is(textarea, input)");
  if (field?.value) follow(field.value); // it may have been edited before the examples were there
}

/** Mark the example that has this prompt. */
function follow(prompt) {
  mark(cards.findIndex((card) => card.prompt === prompt));
}

document.addEventListener("prompted", ({ detail }) => follow(detail));
watch("value", show);
show();
