
// The film of a storm: a curtain hides what is still to come. Without this script all of it is seen.
document.querySelectorAll(".film").forEach((film) => {
  const data = JSON.parse(film.dataset.film);
  const chart = film.querySelector("svg");
  const curtain = chart.querySelector(".curtain");
  const slider = film.querySelector("input");
  const play = film.querySelector("button");
  const said = film.querySelector("output");
  const last = (list, at) => list.reduce((found, one) => (one[0] <= at ? one : found), null);
  const show = (at) => {
    const x = data.left + ((data.right - data.left) * at) / data.seconds;
    curtain.setAttribute("x", x);
    curtain.setAttribute("width", Math.max(0, data.right + 4 - x));
    const trained = last(data.progress, at);
    const living = last(data.living, at);
    const fault = last(data.struck, at);
    said.textContent =
      `${at.toFixed(1)} s: ${(trained ? trained[1] : 0).toLocaleString("en")} ${data.unit} trained, ` +
      `${living ? living[1] : 0} of ${data.learners} learners` + (fault ? `; last: ${fault[1]}` : "");
    slider.setAttribute("aria-valuetext", said.textContent);  // said aloud when asked for, not all the time
  };
  let timer = null;
  let at = 0;
  const stop = () => { clearInterval(timer); timer = null; play.textContent = "Play"; };
  const step = () => {
    at = Math.min(data.seconds, at + data.seconds / 400);
    slider.value = at;
    show(at);
    if (at >= data.seconds) stop();
  };
  play.addEventListener("click", () => {
    if (timer !== null) return stop();
    at = parseFloat(slider.value) < data.seconds ? parseFloat(slider.value) : 0;
    play.textContent = "Stop";
    timer = setInterval(step, 50);  // twenty seconds, however long the run was
  });
  slider.addEventListener("input", () => { stop(); show(parseFloat(slider.value)); });
  film.querySelector(".controls").hidden = false;
  show(data.seconds);
});
