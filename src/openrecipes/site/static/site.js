"use strict";
// What reading does not need: copy buttons, the place in the contents, the price calculator.

function copied(button, text) {
  const label = button.textContent;
  button.textContent = text;
  button.classList.toggle("done", text === "Copied");
  setTimeout(() => { button.textContent = label; button.classList.remove("done"); }, 1600);
}

async function copy(button) {
  const source = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(source.textContent);
    copied(button, "Copied");
  } catch {
    // no clipboard (a file, an old browser, not allowed): select it, so that one key copies it
    getSelection().selectAllChildren(source);
    copied(button, "Selected");
  }
}

for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", () => copy(button));
}

function duration(seconds) {
  if (seconds < 120) return `${seconds.toPrecision(3)} s`;
  if (seconds < 7200) return `${(seconds / 60).toPrecision(3)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toPrecision(3)} h`;
  const days = seconds / 86400;
  return `${days < 100 ? days.toPrecision(3) : Math.round(days).toLocaleString("en")} days`;
}

for (const form of document.querySelectorAll("form.calculator")) {
  const rate = Number(form.dataset.rate);
  const answer = () => {
    const { tokens, price, gpus, cost, time, hours } = form.elements;
    const count = Number(tokens.value) * 1e6;
    const many = Number(gpus.value);
    const known = rate > 0 && count > 0 && many >= 1;
    const gpuHours = count / rate / 3600;
    time.value = known ? duration((gpuHours / many) * 3600) : "–";
    hours.value = known ? gpuHours.toLocaleString("en", { maximumSignificantDigits: 4 }) : "–";
    const usd = gpuHours * Number(price.value);
    cost.value = known && price.value !== "" && price.checkValidity()
      ? usd.toLocaleString("en", { style: "currency", currency: "USD", maximumFractionDigits: usd < 100 ? 2 : 0 })
      : "unknown";
  };
  form.hidden = false;
  form.addEventListener("input", answer);
  form.addEventListener("submit", (event) => event.preventDefault());
  answer();
}

const entries = new Map();
for (const link of document.querySelectorAll(".contents a")) entries.set(link.hash.slice(1), link);
if (entries.size) {
  const seen = new IntersectionObserver((changes) => {
    for (const { target, isIntersecting } of changes) {
      if (!isIntersecting) continue;
      for (const link of entries.values()) link.classList.remove("now");
      entries.get(target.id)?.classList.add("now");
    }
  }, { rootMargin: "-10% 0px -75% 0px" });
  for (const id of entries.keys()) {
    const section = document.getElementById(id);
    if (section) seen.observe(section);
  }
}
