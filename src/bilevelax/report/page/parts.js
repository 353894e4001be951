"use strict";
// What both pages have: elements, buttons that stay pressed, tables that sort, light and dark. Text enters as text only.

const find = id => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const press = (button, on) => button.setAttribute("aria-pressed", String(on));
const pressed = button => button.getAttribute("aria-pressed") === "true";

function make(kind, text, attributes = {}) {
  const made = document.createElement(kind);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function choose(buttons, chosen) {
  for (const button of buttons) press(button, button === chosen);
}

function sortable(table) {
  const heads = all("thead th", table), body = table.tBodies[0];
  const cell = (row, i) => row.cells[i], value = (row, i) => cell(row, i).dataset.value;
  heads.forEach((head, i) => {
    if (body.rows.length && cell(body.rows[0], i).classList.contains("number")) head.classList.add("number");
    head.querySelector("button").addEventListener("click", () => {
      const turn = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", turn > 0 ? "ascending" : "descending");
      const compare = (a, b) => {
        const left = value(a, i), right = value(b, i);
        if (left === undefined && right === undefined) return turn * cell(a, i).textContent.localeCompare(cell(b, i).textContent, undefined, { numeric: true });
        if (left === undefined || right === undefined) return left === undefined ? 1 : -1;
        return turn * (left - right);
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}

function theme() {
  const button = find("theme"), system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const tell = () => press(button, dark());
  button.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; tell(); });
  system.addEventListener("change", tell);
  tell();
}

function redrawn(draw) {
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
}

