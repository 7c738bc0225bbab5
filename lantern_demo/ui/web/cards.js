// The examples: a picture and its prompt each, one click to show how it was recorded.

const place = element.querySelector(".cards");

function show() {
  place.replaceChildren();
  if (!props.value) return;
  const { cards, words } = JSON.parse(props.value);
  const row = el("div", { class: "card-row", role: "group", "aria-label": words.cardsTitle });
  place.append(el("p", { class: "note" }, words.cardsTitle), row);
  for (const [i, card] of cards.entries()) {
    const mark = () => [...row.children].forEach((other, at) => other.setAttribute("aria-pressed", String(at === i)));
    row.append(el("button", { type: "button", class: "card", "aria-pressed": "false", "aria-label": say(words.showCard, { prompt: card.prompt }),
      onclick: () => { mark(); trigger("pick", { index: i }); } },
      card.picture ? el("img", { src: card.picture, alt: "" }) : null, el("span", {}, card.prompt)));
  }
}

watch("value", show);
show();
