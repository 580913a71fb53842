"use strict";
// The index: filters and sorting, with the state in the address so that a view can be shared.

const table = document.querySelector("table.index");
const form = document.querySelector("form.filter");

if (table && form) start();

function start() {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const keys = heads.map((head) => head.dataset.key);
  const numeric = heads.map((head) => head.classList.contains("n"));
  const number = (text) => (text === "" ? NaN : Number(text.replace(/[$,%]/g, "")));
  const rows = [...body.rows].map((row, place) => {
    const shown = [...row.cells].map((cell) => cell.textContent.trim());
    shown[0] = row.cells[0].querySelector("a").textContent;
    const values = shown.map((text, i) => (numeric[i] ? number(text) : text));
    const cell = Object.fromEntries(keys.map((key, i) => [key, values[i]]));
    return { row, place, values, cell, shown, text: row.textContent.toLowerCase(), there: true };
  });
  const dots = new Map();
  for (const dot of document.querySelectorAll("#scatter [data-page]")) dots.set(dot.dataset.page, dot);
  for (const item of rows) item.dot = dots.get(item.row.cells[0].querySelector("a").getAttribute("href"));
  const found = form.elements.found;
  let order = { key: "", down: false };
  let sorted = rows;
  // Laying out a thousand rows takes longer than a blink: more are shown as the reader scrolls.
  const stride = 150;
  let limit = stride;
  const end = document.createElement("div");
  let more;
  table.parentElement.after(end);

  const choices = ["model", "gpu", "gpus", "status"];
  const bounds = {
    minrate: (item, bound) => item.cell.rate >= bound,
    maxusd: (item, bound) => item.cell.usd <= bound,
    minmfu: (item, bound) => item.cell.mfu >= bound,
  };

  function filter() {
    const value = (name) => form.elements[name]?.value.trim() ?? "";
    const words = value("q").toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = choices.map((name) => [keys.indexOf(name), value(name)]).filter(([, v]) => v);
    const limits = Object.entries(bounds).map(([name, test]) => [test, value(name)]).filter(([, v]) => v);
    const since = value("since");
    let count = 0;
    for (const item of sorted) {
      const there =
        words.every((word) => item.text.includes(word)) &&
        chosen.every(([i, v]) => item.shown[i] === v) &&
        limits.every(([test, v]) => test(item, Number(v))) &&
        (!since || item.cell.measured >= since);
      if (there !== item.there) item.dot?.classList.toggle("away", !there);
      item.there = there;
      if (there) count += 1;
    }
    found.value = count.toLocaleString("en");
    show(stride);
    more?.unobserve(end);
    more?.observe(end);
  }

  function show(upTo) {
    limit = upTo;
    let shown = 0;
    for (const item of sorted) {
      const hidden = !item.there || shown >= limit;
      if (!hidden) shown += 1;
      if (item.row.hidden !== hidden) item.row.hidden = hidden;
    }
  }

  function sort() {
    const i = keys.indexOf(order.key);
    const compare = (a, b) => {
      if (i < 0) return a.place - b.place;
      const [x, y] = [a.values[i], b.values[i]];
      const [gone, missing] = [x === "" || Number.isNaN(x), y === "" || Number.isNaN(y)];
      if (gone || missing) return gone - missing || a.place - b.place; // unknown comes last
      const way = numeric[i] ? x - y : x.localeCompare(y, "en", { numeric: true });
      return (order.down ? -way : way) || a.place - b.place;
    };
    sorted = [...rows].sort(compare);
    show(stride);
    body.append(...sorted.map((item) => item.row));
    heads.forEach((head, at) => {
      if (at === i) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  function remember() {
    const state = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value.trim()) state.set(name, value.trim());
    if (order.key) state.set("sort", (order.down ? "-" : "") + order.key);
    const query = state.toString();
    try {
      history.replaceState(null, "", query ? `?${query}` : location.pathname);
    } catch { /* some browsers keep the address of a file as it is */ }
  }

  function recall() {
    const state = new URLSearchParams(location.search);
    for (const field of form.elements) if (field.name && "value" in field) {
      if (field.tagName === "OUTPUT") continue;
      const value = state.get(field.name) ?? "";
      field.value = value;
      if (field.value !== value) field.value = ""; // a value that is no choice here
      if (value && field.closest("details")) field.closest("details").open = true;
    }
    const by = state.get("sort") ?? "";
    const key = by.replace(/^-/, "");
    order = keys.includes(key) ? { key, down: by.startsWith("-") } : { key: "", down: false };
    sort();
    filter();
  }

  heads.forEach((head) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const better = ["rate", "mfu", "measured", "gpus"].includes(head.dataset.key);
      if (order.key !== head.dataset.key) order = { key: head.dataset.key, down: better };
      else if (order.down === better) order.down = !better;
      else order = { key: "", down: false };
      sort();
      remember();
    });
  });
  form.hidden = false;
  form.addEventListener("input", () => { filter(); remember(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => {
    order = { key: "", down: false };
    sort();
    filter();
    remember();
  }));
  more = new IntersectionObserver(([seen]) => {
    if (!seen.isIntersecting || limit >= rows.length) return;
    show(limit + stride);
    more.unobserve(end); // asks again, should the end still be near or above
    more.observe(end);
  }, { rootMargin: "1000000px 0px 600px" });
  more.observe(end);
  addEventListener("beforeprint", () => show(rows.length));
  addEventListener("popstate", recall);
  recall();
}
