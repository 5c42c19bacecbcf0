"use strict";
// Shared by all parts of the page: the data, element helpers, the selected setting. Also the table.

document.getElementById("no-script").hidden = true;

const report = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const listeners = [];

  /** Create an element with attributes and children; functions under "on..." become listeners. */
  function make(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }

  /** Create an SVG element; the namespace comes from an existing SVG. */
  function draw(tag, attributes = {}, ...children) {
    return fill(document.createElementNS(document.querySelector("svg").namespaceURI, tag), attributes, children);
  }

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  function mark(kind) {
    const use = draw("use", { href: `#mark-${kind}`, x: -8, y: -8, width: 16, height: 16 });
    return draw("svg", { class: `mark kind-${kind}`, viewBox: "-8 -8 16 16", "aria-hidden": "true" }, use);
  }

  /** The name of a setting: "ToMe at 0.65". */
  function title(entry) {
    return entry.budget === null ? entry.label : `${entry.label} at ${entry.budget}`;
  }

  /** Add radio buttons for a choice. */
  function choices(fieldset, options, change, first = options[0][0]) {
    options.forEach(([value, text]) => {
      const input = make("input", { type: "radio", name: fieldset.id, value, onchange: () => change(value) });
      input.checked = value === first;
      fieldset.append(make("label", {}, input, make("span", {}, text)));
    });
  }

  const chosen = { entry: null };
  function choose(index) {
    if (index === chosen.entry) return;
    chosen.entry = index;
    listeners.forEach((listener) => listener(index));
  }

  return { data, make, draw, mark, title, choices, choose, chosen, onChoose: (listener) => listeners.push(listener) };
})();

// Copy to the clipboard if the browser allows it; otherwise select the text for the reader to copy.
(() => {
  async function copy(button) {
    const source = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent);
      setLabel(button, "Copied");
    } catch {
      getSelection().selectAllChildren(source);
      setLabel(button, document.execCommand("copy") ? "Copied" : "Selected");
    }
  }

  function setLabel(button, text) {
    button.textContent = text;
    setTimeout(() => (button.textContent = "Copy"), 1600);
  }

  for (const button of document.querySelectorAll(".copy")) button.hidden = false;
  document.addEventListener("click", (event) => {
    const button = event.target.closest(".copy");
    if (button) copy(button);
  });
})();

// The table: a click on a header sorts by it, a second click reverses the order; missing values stay at the end.
(() => {
  const table = document.querySelector("table"); // the first: that of other runtimes does not sort
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];

  function compare(one, other, sign) {
    if (one === "" || other === "") return (one === "") - (other === "");
    const [first, second] = [Number(one), Number(other)];
    const numbers = !Number.isNaN(first) && !Number.isNaN(second);
    return sign * (numbers ? first - second : one.localeCompare(other, "en"));
  }

  function sort(column) {
    const head = heads[column];
    const first = head.querySelector("button").dataset.first;
    const other = first === "ascending" ? "descending" : "ascending";
    const order = head.getAttribute("aria-sort") === first ? other : first;
    heads.forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const value = (row) => row.cells[column].dataset.value;
    const rows = [...body.rows].sort((a, b) => Number(a.dataset.entry) - Number(b.dataset.entry));
    body.append(...rows.sort((a, b) => compare(value(a), value(b), sign)));
  }

  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => sort(column)));
})();
