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

// A column's title sorts its table: numbers by value (1.83 M, 12 min, 702,144), the rest as text.
const units = { k: 1e3, M: 1e6, G: 1e9, T: 1e12, min: 60, h: 3600 };
const valued = (text) => {
  const found = text.replace(/,/g, "").match(/^[+\u2212-]?[\d.]+(?:e[+-]?\d+)?(?:\s*(min|h|k|M|G|T)\b)?/);
  return found ? parseFloat(found[0].replace("\u2212", "-")) * (units[found[1]] || 1) : null;
};
const compared = (a, b) => {
  const [x, y] = [valued(a), valued(b)];
  return x !== null && y !== null ? x - y : x !== null ? -1 : y !== null ? 1 : a.localeCompare(b);
};
document.querySelectorAll("table.sortable").forEach((table) => {
  const titles = [...table.tHead.rows[0].cells];
  titles.forEach((title, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...title.childNodes);
    title.append(button);
    title.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const down = title.getAttribute("aria-sort") === "ascending";
      titles.forEach((other) => other.setAttribute("aria-sort", "none"));
      title.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => compared(a.cells[place].textContent, b.cells[place].textContent) * (down ? -1 : 1));
      table.tBodies[0].append(...rows);
    });
  });
});

// Where there are many series, boxes choose which of them are drawn as curves; rows below each other do not overlap.
const curves = [...marked].filter((e) => !e.classList.contains("row"));
document.querySelectorAll(".choice").forEach((choice) => {
  const boxes = [...choice.querySelectorAll("input")];
  const obey = () => {
    const shown = boxes.filter((box) => box.checked).map((box) => box.value);
    curves.forEach((e) => e.classList.toggle("gone", !series(e).some((s) => shown.includes(s))));
  };
  choice.hidden = false;
  choice.addEventListener("change", obey);
  choice.querySelectorAll("button").forEach((button) =>
    button.addEventListener("click", () => {
      boxes.forEach((box) => (box.checked = button.dataset.all === "all"));
      obey();
    })
  );
  obey();
});
