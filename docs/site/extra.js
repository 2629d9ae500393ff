// What scrolls can be reached by the keyboard.
const reachable = () =>
  document.querySelectorAll("pre > code, pre, .md-typeset__scrollwrap, .md-typeset__table, .md-sidebar__scrollwrap").forEach((e) => {
    if (e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight) e.tabIndex = 0;
  });
addEventListener("load", reachable);
addEventListener("resize", reachable);
// The theme's inputs for light and dark are hidden from readers of screens, so no key stops at them.
addEventListener("load", () => document.querySelectorAll("input.md-option").forEach((e) => (e.tabIndex = -1)));
