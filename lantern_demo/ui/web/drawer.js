// The settings, which open over the page. Draw in them closes them, for the race is what one wants to see then.

/** Once the page is there. */
function settingsDrawer() {
  const [panel, opener] = ["settings", "open-settings"].map((id) => document.getElementById(id));

  function set(open) {
    document.body.classList.toggle("settings-open", open);
    opener.setAttribute("aria-expanded", open);
  }

  function close() {
    set(false);
    opener.focus({ preventScroll: true });
  }

  fill(panel, { role: "dialog", "aria-labelledby": "settings-title", tabindex: -1 }, []);
  fill(opener, { "aria-haspopup": "dialog", "aria-controls": "settings" }, []);
  set(false);
  opener.addEventListener("click", () => {
    set(!document.body.classList.contains("settings-open"));
    panel.focus({ preventScroll: true });
  });
  panel.addEventListener("click", ({ target }) => {
    if (target.closest(".close")) close();
    if (!target.closest("#draw-these")) return;
    close();
    drawInView();
  });
  layer("body.settings-open #settings", () => opener, () => set(false));
}
