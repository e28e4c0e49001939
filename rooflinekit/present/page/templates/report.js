"use strict";
// Adds pointing, filters and sorting to a page that is whole without them. Everything shown is read from the page's own
// table as text, never as HTML.
(() => {
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
  const one = (id) => document.getElementById(id);
  const table = one("kernels"), tip = one("tip");
  document.documentElement.classList.add("js");

  // --- what belongs together
  const body = table.tBodies[0];
  const rows = all("tr", body);
  const heads = all("thead th", table).map((head) => head.textContent);
  const marks = all(".roofline .mark");
  const byKey = new Map(rows.map((row) => [row.dataset.k, { row, marks: [] }]));
  for (const mark of marks) byKey.get(mark.dataset.k).marks.push(mark);

  // --- the facts of what is pointed at
  const element = (tag, text, className) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const facts = (row) => {
    const cells = Array.from(row.cells, (cell) => cell.textContent);
    const list = document.createElement("dl");
    for (let i = 2; i < cells.length; i++) {
      if (cells[i]) list.append(element("dt", heads[i]), element("dd", cells[i]));
    }
    return [element("strong", cells[0]), element("div", cells[1], "where"), list];
  };
  const show = (content, x, y) => {
    tip.replaceChildren(...content);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth - 8 ? x - 16 - box.width : x + 16;
    tip.style.left = `${Math.max(8, Math.min(left, innerWidth - box.width - 8))}px`;
    tip.style.top = `${Math.max(8, Math.min(y - box.height / 3, innerHeight - box.height - 8))}px`;
  };
  let held = null; // what has the focus, while its facts are shown
  const hide = () => {
    tip.hidden = true;
    held = null;
    for (const hot of all(".hot")) hot.classList.remove("hot");
  };
  const light = (key) => {
    const { row, marks: of } = byKey.get(key);
    row.classList.add("hot");
    for (const mark of of) mark.classList.add("hot");
  };
  const middle = (node) => {
    const box = node.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };

  // --- one stop of the Tab key for many things; arrow keys go from one to the next
  const roving = (nodes, forward, back) => {
    const shown = () => nodes.filter((node) => node.getClientRects().length);
    nodes.forEach((node, i) => node.setAttribute("tabindex", i ? "-1" : "0"));
    for (const node of nodes) {
      node.addEventListener("keydown", (event) => {
        const list = shown(), at = list.indexOf(node);
        const ends = { Home: 0, End: list.length - 1 };
        const to = forward.includes(event.key) ? at + 1 : back.includes(event.key) ? at - 1 : ends[event.key];
        if (to === undefined) return;
        event.preventDefault();
        if (list[to]) list[to].focus();
      });
      node.addEventListener("focus", () => {
        for (const other of nodes) other.setAttribute("tabindex", other === node ? "0" : "-1");
      });
    }
  };
  const ready = (nodes) => {
    const shown = nodes.filter((node) => node.getClientRects().length);
    if (shown.length && !shown.some((node) => node.getAttribute("tabindex") === "0")) {
      shown[0].setAttribute("tabindex", "0");
    }
  };

  for (const chart of all(".roofline, .timeline")) chart.setAttribute("role", "group");
  const described = all(".roofline .mark, .timeline .block");
  const titles = new Map();
  for (const node of described) {
    const title = node.querySelector("title");
    titles.set(node, title.textContent);
    node.setAttribute("role", "img");
    node.setAttribute("aria-label", title.textContent);
    title.remove(); // else the browser's own box would lie over ours
  }
  const content = (node) => {
    if (node.dataset.k) return facts(byKey.get(node.dataset.k).row);
    const [first, ...rest] = titles.get(node).split(", ");
    return [element("strong", first), element("div", rest.join(", "))];
  };
  const point = (node, x, y) => {
    hide();
    if (node.dataset.k) light(node.dataset.k);
    node.classList.add("hot");
    show(content(node), x, y);
  };
  for (const node of described) {
    node.addEventListener("pointermove", (event) => point(node, event.clientX, event.clientY));
    node.addEventListener("pointerleave", hide);
    node.addEventListener("focus", () => {
      if (!node.matches(":focus-visible")) return;
      point(node, ...middle(node));
      held = node;
    });
    node.addEventListener("blur", hide);
  }
  for (const mark of marks) {
    const go = () => {
      const { row } = byKey.get(mark.dataset.k);
      row.focus();
      row.scrollIntoView({ block: "nearest" });
    };
    mark.addEventListener("click", go);
    mark.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); go(); } });
  }
  for (const row of rows) {
    const mine = () => { hide(); light(row.dataset.k); };
    row.addEventListener("pointerenter", mine);
    row.addEventListener("pointerleave", hide);
    row.addEventListener("focus", mine);
    row.addEventListener("blur", hide);
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("scroll", () => {
    if (held) show(content(held), ...middle(held));
    else if (!tip.hidden) hide();
  }, { passive: true });
  const charts = all(".roofline, .timeline").map((chart) => all(".mark, .block", chart));
  for (const nodes of charts) roving(nodes, ["ArrowRight", "ArrowDown"], ["ArrowLeft", "ArrowUp"]);
  roving(rows, ["ArrowDown"], ["ArrowUp"]);

  // --- filters
  const form = document.querySelector(".filters");
  const number = (cell) => Number(cell.dataset.v ?? cell.textContent);
  const seconds = (value) => {
    const [scale, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]].find(([least]) => value >= least) ?? [1e-9, "ns"];
    return `${(value / scale).toPrecision(3)} ${unit}`;
  };
  const filter = () => {
    const [module, math, phase] = ["f-module", "f-math", "f-phase"].map((id) => one(id).value);
    const words = one("f-text").value.trim().toLowerCase();
    let kernels = 0, time = 0, share = 0, shown = 0;
    for (const row of rows) {
      const [name, path, itsPhase, itsMath, count, took, part] = row.cells;
      const at = path.textContent;
      const fits = (!module || at === module || at.startsWith(`${module}.`)) && (!math || itsMath.textContent === math)
        && (!phase || itsPhase.textContent === phase)
        && (!words || `${name.textContent} ${at}`.toLowerCase().includes(words));
      row.hidden = !fits;
      for (const mark of byKey.get(row.dataset.k).marks) mark.classList.toggle("off", !fits);
      if (!fits) continue;
      shown += 1;
      kernels += number(count);
      time += number(took);
      share += number(part);
    }
    one("f-status").textContent =
      `${kernels} kernels in ${shown} rows, ${seconds(time)}, ${(100 * share).toFixed(share < 0.1 ? 1 : 0)}% of the GPU’s time`;
    for (const label of all(".roofline .name[data-k]")) {
      label.classList.toggle("off", byKey.get(label.dataset.k).row.hidden);
    }
    for (const nodes of [...charts, rows]) ready(nodes);
  };
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));
  form.hidden = false;
  filter();

  // --- sorting
  const sort = (head, column, kind) => {
    const now = head.getAttribute("aria-sort");
    const down = now ? now === "ascending" : kind === "number";
    for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const compare = kind === "number"
      ? (a, b) => number(a.cells[column]) - number(b.cells[column])
      : (a, b) => a.cells[column].textContent.localeCompare(b.cells[column].textContent, "en", { numeric: true });
    rows.sort((a, b) => (down ? compare(b, a) : compare(a, b)) || a.dataset.k - b.dataset.k);
    body.append(...rows);
  };
  all("thead th", table).forEach((head, column) => {
    const button = element("button", head.textContent);
    button.type = "button";
    button.addEventListener("click", () => sort(head, column, head.dataset.sort));
    head.replaceChildren(button);
  });
})();
