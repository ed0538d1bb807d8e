"use strict";
// One step is shown at a time, chosen by the slider; a bar is told about in words, by mouse or by arrow keys.
const steps = [...document.querySelectorAll("article.step")];
const slider = document.getElementById("slider"), which = document.getElementById("which");
const told = document.getElementById("told"), hint = told.textContent;
let at = null;

function show(number) {
  slider.value = number;
  steps.forEach((step, other) => { step.hidden = other !== number; });
  which.textContent = steps[number].dataset.step;
  slider.setAttribute("aria-valuetext", "step " + steps[number].dataset.step);
  for (const line of document.querySelectorAll(".now")) {
    line.setAttribute("x1", steps[number].dataset.across);
    line.setAttribute("x2", steps[number].dataset.across);
  }
  tell(null);
}

function tell(bar) {
  if (at) at.classList.remove("at");
  at = bar;
  if (!bar) { told.textContent = hint; return; }
  bar.classList.add("at");
  told.textContent = "rank " + bar.closest(".rank").dataset.rank + ", " + bar.title;
}

function walk(chart, key) {
  const lanes = [...chart.querySelectorAll(".lane")].map(lane => [...lane.querySelectorAll(".bar")]).filter(bars => bars.length);
  if (!lanes.length) return;
  const lane = lanes.findIndex(bars => bars.includes(at));
  if (lane < 0) { tell(lanes[0][0]); return; }
  const bars = lanes[lane], place = bars.indexOf(at);
  if (key === "ArrowRight") tell(bars[Math.min(place + 1, bars.length - 1)]);
  if (key === "ArrowLeft") tell(bars[Math.max(place - 1, 0)]);
  if (key === "Home") tell(bars[0]);
  if (key === "End") tell(bars[bars.length - 1]);
  const other = lanes[lane + (key === "ArrowDown" ? 1 : key === "ArrowUp" ? -1 : 0)];
  if (other && other !== bars) {
    const left = bar => Math.abs(parseFloat(bar.style.left) - parseFloat(at.style.left));
    tell(other.reduce((best, bar) => (left(bar) < left(best) ? bar : best)));
  }
}

if (steps.length) {
  document.getElementById("controls").hidden = false;
  slider.addEventListener("input", () => show(Number(slider.value)));
  document.getElementById("before").addEventListener("click", () => show(Math.max(0, Number(slider.value) - 1)));
  document.getElementById("after").addEventListener("click", () => show(Math.min(steps.length - 1, Number(slider.value) + 1)));
  for (const chart of document.querySelectorAll(".chart")) {
    chart.addEventListener("click", event => tell(event.target.closest(".bar")));
    chart.addEventListener("mouseover", event => { if (event.target.closest(".bar")) tell(event.target.closest(".bar")); });
    chart.addEventListener("keydown", event => {
      if (event.key === "Escape") tell(null);
      if (!/^(Arrow|Home|End)/.test(event.key)) return;
      event.preventDefault();
      walk(chart, event.key);
    });
  }
  const named = steps.findIndex(step => "#" + step.id === location.hash);
  show(named >= 0 ? named : Number(slider.value));
}
