// Long tables can be filtered and sorted. Without scripts they are whole.
//
// A filter is words and comparisons, all of which must hold: "nvidia hopper", "memory>=80 power<400 -sxm". A comparison
// names a column by the beginning of a word of its heading.
"use strict";
(() => {
  const LONG = 40; // rows
  const value = (cell) => Number.parseFloat(cell.textContent.replace(",", ""));

  function column(heads, name) {
    const begins = (head) => head.split(/[^\w/$]+/).some((word) => word.startsWith(name));
    return heads.findIndex(begins);
  }

  // A word as a condition on a row; an unknown column holds for none.
  function condition(word, heads) {
    const found = /^([\w/$]+?)(>=|<=|>|<|=)([\d.]+)$/.exec(word);
    if (found) {
      const [at, limit] = [column(heads, found[1]), Number(found[3])];
      const holds = {
        ">=": (x) => x >= limit, "<=": (x) => x <= limit, ">": (x) => x > limit, "<": (x) => x < limit,
        "=": (x) => x === limit,
      }[found[2]];
      return (row) => at >= 0 && holds(value(row.cells[at]));
    }
    if (word.length > 1 && word.startsWith("-")) return (row) => !row.cells[0].textContent.toLowerCase().includes(word.slice(1));
    return (row) => row.cells[0].textContent.toLowerCase().includes(word);
  }

  function filterable(table) {
    const rows = [...table.tBodies[0].rows];
    const heads = [...table.tHead.rows[0].cells];
    const names = heads.map((head) => head.textContent.toLowerCase());
    const bar = document.createElement("div");
    bar.className = "filter";
    bar.innerHTML = '<input type="search" aria-label="filter" placeholder="a100 memory&gt;=80 power&lt;400 -pcie"><output></output>';
    const [input, count] = bar.children;
    const show = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const conditions = words.map((word) => condition(word, names));
      for (const row of rows) row.hidden = !conditions.every((holds) => holds(row));
      count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
    };
    const sort = (head, at) => {
      const up = head.getAttribute("aria-sort") === "descending" || (at === 0 && !head.hasAttribute("aria-sort"));
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => (at === 0 ? row.cells[0].textContent : value(row.cells[at]));
      const empty = (row) => at > 0 && Number.isNaN(key(row)); // stands last, whichever way
      rows.sort((a, b) => empty(a) - empty(b) || (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (up ? 1 : -1));
      table.tBodies[0].append(...rows);
    };
    heads.forEach((head, at) => {
      head.tabIndex = 0;
      head.addEventListener("click", () => sort(head, at));
      head.addEventListener("keydown", (event) => event.key === "Enter" && sort(head, at));
    });
    input.addEventListener("input", show);
    table.classList.add("filterable");
    table.before(bar);
    show();
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const table of document.querySelectorAll(".md-content table")) {
      if (table.tHead && table.tBodies.length && table.tBodies[0].rows.length > LONG) filterable(table);
    }
  });
})();
