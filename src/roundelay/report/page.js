"use strict";
// Point at a name in a legend to pick its series out everywhere; press to keep it picked out. The page is whole without this.
const series = (e) => e.dataset.s.split(" ");
const marked = document.querySelectorAll("[data-s]");
const buttons = document.querySelectorAll(".legend button");
let kept = null;
const show = (chosen) =>
  marked.forEach((e) => e.classList.toggle("faint", chosen !== null && !series(e).some((s) => chosen.includes(s))));
buttons.forEach((button) => {
  const own = series(button);
  button.addEventListener("mouseenter", () => show(own));
  button.addEventListener("mouseleave", () => show(kept));
  button.addEventListener("click", () => {
    kept = kept !== null && kept.join() === own.join() ? null : own;
    buttons.forEach((b) => b.setAttribute("aria-pressed", String(kept !== null && series(b).join() === kept.join())));
    show(kept);
  });
});
