"use strict";
// Two to four recipes side by side; the address holds which ones.

const form = document.querySelector("form.filters");
const rows = JSON.parse(form.dataset.rows);
const most = 4;
const unknown = "unknown";

const significant = (value) =>
  value.toLocaleString("en", { minimumSignificantDigits: 3, maximumSignificantDigits: 3 });
const fixed = (value, digits) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const forms = {
  text: String,
  count: (value) => value.toLocaleString("en"),
  rate: (value) => fixed(value, 2),
  usd: (value) => (value > 0 && value < 0.01 ? `$${Number(value.toPrecision(2))}` : `$${fixed(value, 2)}`),
  percent: (value) => `${significant(value * 100)}%`,
  cv: (value) => `${fixed(value, 2)}%`,
  switch: (value) => (value ? "on" : "off"),
};

const at = (recipe, key) => key.split(".").reduce((item, part) => item?.[part], recipe) ?? null;
const title = (recipe) => `${recipe.gpus} x ${recipe.gpu}, ${recipe.author ?? recipe.engine ?? recipe.layout}`;

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function best(values, better) {
  const known = values.filter((value) => value !== null);
  if (!better || new Set(known).size < 2) return null;
  return better > 0 ? Math.max(...known) : Math.min(...known);
}

function table(recipes) {
  const made = element("table", undefined, { class: "sides many" });
  const head = made.createTHead().insertRow();
  head.append(element("td"));
  for (const recipe of recipes) {
    const cell = element("th", undefined, { scope: "col" });
    cell.append(element("span", recipe.model, { class: "over" }));
    cell.append(element("a", title(recipe), { href: recipe.page }));
    cell.append(element("span", recipe.status, { class: `st ${recipe.status}` }));
    head.append(cell);
  }
  const body = made.createTBody();
  for (const { label, key, form: name, better } of rows) {
    const values = recipes.map((recipe) => at(recipe, key));
    if (values.every((value) => value === null)) continue;
    const texts = values.map((value) => (value === null ? unknown : forms[name](value)));
    const row = body.insertRow();
    if (new Set(texts).size > 1) row.className = "differs";
    row.append(element("th", label, { scope: "row" }));
    const top = best(values, better);
    texts.forEach((text, i) => {
      row.append(element("td", text, top !== null && values[i] === top ? { class: "best" } : {}));
    });
  }
  return made;
}

function trouble(text) {
  const place = document.getElementById("trouble");
  place.textContent = text;
  place.hidden = false;
}

async function start() {
  let recipes;
  try {
    const answer = await fetch("index.json");
    if (!answer.ok) throw new Error(answer.statusText);
    recipes = (await answer.json()).recipes;
  } catch {
    trouble("The list of recipes could not be read. A browser reads it only from a web server: openrecipes site serve shows this folder through one.");
    return;
  }
  const byPath = new Map(recipes.map((recipe) => [recipe.path, recipe]));
  const chosen = new URLSearchParams(location.search).getAll("r").filter((path) => byPath.has(path)).slice(0, most);
  const fields = [];
  for (let i = 0; i < Math.min(most, recipes.length); i += 1) {
    const select = element("select", undefined, { name: "r" });
    select.append(element("option", "none", { value: "" }));
    const groups = new Map();
    for (const recipe of recipes) {
      if (!groups.has(recipe.model)) groups.set(recipe.model, element("optgroup", undefined, { label: recipe.model }));
      groups.get(recipe.model).append(element("option", `${title(recipe)}, ${recipe.layout}`, { value: recipe.path }));
    }
    select.append(...groups.values());
    select.value = chosen[i] ?? "";
    const label = element("label", `Recipe ${i + 1}`);
    label.append(select);
    form.append(label);
    fields.push(select);
  }
  const show = () => {
    const paths = [...new Set(fields.map((field) => field.value).filter(Boolean))];
    const place = document.getElementById("table");
    place.replaceChildren(paths.length ? table(paths.map((path) => byPath.get(path))) : element("p", "Choose two to four recipes.", { class: "lead" }));
    const query = new URLSearchParams(paths.map((path) => ["r", path])).toString();
    try {
      history.replaceState(null, "", query ? `?${query}` : location.pathname);
    } catch { /* the address of a file stays as it is */ }
  };
  form.hidden = false;
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
}

start();
