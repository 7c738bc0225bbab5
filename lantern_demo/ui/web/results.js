// The component: shows the replay and the numbers of whatever run it is given, or nothing.

const place = element.querySelector(".results");

function show() {
  place.replaceChildren(); // what was playing stops, as it is no longer in the page
  if (!props.value) return;
  const view = JSON.parse(props.value);
  const race = replay(view, view.words);
  place.append(race.root, charts(view, view.words));
  // A replay that starts by itself would be in the way of a reader who asked for stillness, and of one who looks elsewhere.
  if (view.play && !race.calm) race.play();
}

watch("value", show);
show();
