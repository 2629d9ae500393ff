"use strict";
// Point at a name in a legend to pick its series out everywhere; press to keep it picked out. The page is whole without this.
const marked = document.querySelectorAll("[data-s]");
let kept = null;
const show = (chosen) => marked.forEach((e) => e.classList.toggle("faint", chosen !== null && e.dataset.s !== chosen));
document.querySelectorAll(".legend button").forEach((button) => {
  const own = button.dataset.s;
  button.addEventListener("mouseenter", () => show(own));
  button.addEventListener("mouseleave", () => show(kept));
  button.addEventListener("click", () => {
    kept = kept === own ? null : own;
    document.querySelectorAll(".legend button").forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.s === kept)));
    show(kept);
  });
});
