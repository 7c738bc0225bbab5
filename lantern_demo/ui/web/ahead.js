// In the HTML's head, ahead of Gradio's scripts: they keep the functions that they find, and listeners run in the order of their coming.

// Gradio's page counts the seconds that it takes to load, and goes on with every frame once it has loaded: on two cores a race took a tenth
// longer for it. It does so by a function of these words.
(() => {
  const frame = window.requestAnimationFrame;
  const counts = (call) => /performance\.now\(\)-.*\/1e3/.test(call);
  window.requestAnimationFrame = (call) => (document.body?.classList.contains("staged") && counts(call) ? 0 : frame.call(window, call));
})();

// Gradio's client breaks its streams off when the page goes, and then logs that as an error. The browser ends them by itself.
addEventListener("beforeunload", (event) => event.stopImmediatePropagation());
