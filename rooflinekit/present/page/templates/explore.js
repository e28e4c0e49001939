"use strict";
// Looks answers up in the page's own table of predictions, and shows them; computes none but by interpolation.
(() => {
  const one = (id) => document.getElementById(id);
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
  const data = JSON.parse(one("data").textContent);
  const { choices, times, regimes, exact, series, counts, pool } = data;
  const AXES = ["workload", "gpu", "execution", "host", "limit"];

  // --- what was predicted
  const sizesOf = (state) => data.sizes[state.workload];
  const between = (before, after, share, log) => {
    if (before === null || after === null) return null;
    return log ? before ** (1 - share) * after ** share : before * (1 - share) + after * share;
  };
  const look = (state) => {
    const place = AXES.reduce((sum, axis) => sum * choices[axis].length + state[axis], 0);
    const sizes = sizesOf(state), values = sizes.length ? sizes[sizes.length - 1][1] : [1];
    const at = sizes.map(([name]) => state.sizes[name]);
    const i = at.length ? at[at.length - 1] : 0;
    const line = sizes.slice(0, -1).reduce((sum, [, listed], k) => sum * listed.length + at[k], 0);
    const [kept, rows] = series[place][line];
    let high = kept.findIndex((k) => k >= i);
    const found = { interpolated: kept[high] !== i }, low = high - 1;
    const share = found.interpolated
      ? Math.log(values[i] / values[kept[low]]) / Math.log(values[kept[high]] / values[kept[low]]) : 1;
    [...times, ...regimes].forEach((name, k) => {
      found[name] = share === 1 ? rows[high][k] : between(rows[low][k], rows[high][k], share, k < times.length);
    });
    exact.forEach((name, k) => { found[name] = pool[counts[place][k]][line * values.length + i]; });
    const batch = sizes.findIndex(([name]) => name === "batch");
    found.samples = batch < 0 ? data.fixed[state.workload] : sizes[batch][1][at[batch]];
    found.regime = regimes.reduce((best, name) => (found[name] > found[best] ? name : best));
    found.watts = found.energy_j === null ? null : found.energy_j / found.total_s;
    const price = prices[state.gpu];
    found.cost = price === null ? null : (price / 3600) * (found.total_s / found.samples) * 1e6;
    return found;
  };
  const prices = data.prices.slice();

  // --- numbers as people read them
  const digits = (value) => (value >= 99.95 ? Math.round(value).toLocaleString("en").replaceAll(",", "\u2009") : value.toPrecision(3));
  const scaled = (value, unit, steps, base) => {
    let k = 0;
    while (value >= base * 0.9995 && k < steps.length - 1) { value /= base; k += 1; }
    return `${digits(value)}\u00a0${steps[k]}${unit}`;
  };
  const seconds = (value) => {
    if (value === 0) return "0\u00a0s";
    const [scale, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]].find(([least]) => Math.abs(value) >= least * 0.9995) ?? [1e-9, "ns"];
    return `${digits(Math.abs(value) / scale)}\u00a0${unit}`;
  };
  const SI = ["", "k", "M", "G", "T", "P", "E"], BINARY = ["", "Ki", "Mi", "Gi", "Ti"];
  const flop = (value) => scaled(value, "FLOP", SI, 1000);
  const percent = (value) => `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)}%`;
  const counted = (found) => (found.samples === null ? "steps" : "samples");
  const FACTS = {
    throughput: (f) => `${digits((f.samples ?? 1) / f.total_s)} ${counted(f)}/s`,
    regime: (f) => `${f.regime} (${percent(f[f.regime])})`,
    queues: (f) => `${seconds(f.total_s * (1 - f.overhead))}, ${seconds(f.cpu_s)}`,
    flop: (f) => `${flop(f.flop)}, ${flop(f.flop / f.total_s)}/s`,
    bytes: (f) => scaled(f.bytes, "B", SI, 1000),
    memory: (f, gpu) => `${scaled(f.peak_bytes, "B", BINARY, 1024)} of ${scaled(gpu.capacity, "B", BINARY, 1024)}, ${f.fits ? "fits" : "does not fit"}`,
    power: (f) => (f.watts === null ? "not known" : `${digits(f.watts)}\u00a0W, ${scaled(f.energy_j, "J", SI, 1000)}`),
    cost: (f) => (f.cost === null ? "name a price above" : `${f.cost.toPrecision(3)} ${data.currency}`),
  };

  // --- the state, which the address holds
  const state = { workload: 0, execution: 0, host: 0, limit: 0, gpus: new Set([0]), sizes: {}, pins: {} };
  for (const lists of data.sizes) for (const [name, values] of lists) state.sizes[name] ??= Math.floor(values.length / 8);
  state.gpus = new Set(choices.gpu.keys());
  const nearest = (values, wanted) =>
    values.reduce((best, value, k) => (Math.abs(value - wanted) < Math.abs(values[best] - wanted) ? k : best), 0);
  const written = (s) => {
    const words = new URLSearchParams();
    for (const axis of AXES) if (s[axis] !== undefined) words.set(axis, choices[axis][s[axis]]);
    for (const [name, values] of sizesOf(s)) words.set(`size.${name}`, values[s.sizes[name]]);
    return words;
  };
  const read = (words) => {
    const s = { sizes: {} };
    for (const axis of AXES) s[axis] = Math.max(0, choices[axis].findIndex((text) => String(text) === words.get(axis)));
    for (const [name, values] of sizesOf(s)) {
      const given = Number(words.get(`size.${name}`) ?? NaN);
      s.sizes[name] = Number.isFinite(given) ? nearest(values, given) : Math.floor(values.length / 8);
    }
    return s;
  };
  const save = () => {
    const words = written(state);
    for (const gpu of state.gpus) words.append("gpu", choices.gpu[gpu]);
    prices.forEach((price, gpu) => { if (price !== data.prices[gpu]) words.set(`price.${choices.gpu[gpu]}`, price ?? ""); });
    for (const [name, pin] of Object.entries(state.pins)) words.set(name, written(pin));
    try { history.replaceState(null, "", `#${words}`); } catch { /* a notebook's frame has no address of its own */ }
  };
  const load = () => {
    const words = new URLSearchParams(location.hash.slice(1));
    if (!words.has("workload")) return;
    const { workload, execution, host, limit, sizes } = read(words);
    Object.assign(state, { workload, execution, host, limit, pins: {} });
    Object.assign(state.sizes, sizes);
    const chosen = words.getAll("gpu").map((name) => choices.gpu.indexOf(name)).filter((k) => k >= 0);
    state.gpus = new Set(chosen);
    choices.gpu.forEach((name, gpu) => {
      const given = words.get(`price.${name}`);
      prices[gpu] = given === null ? data.prices[gpu] : given === "" || !(Number(given) >= 0) ? null : Number(given);
    });
    for (const name of ["a", "b"]) if (words.has(name)) state.pins[name] = read(new URLSearchParams(words.get(name)));
  };

  // --- the controls
  const form = document.querySelector(".knobs");
  const boxes = all("[name=gpu]"), asked = all("[name=price]");
  const sliders = () => {
    one("sizes").replaceChildren(...sizesOf(state).filter(([, values]) => values.length > 1).map(([name, values]) => {
      const label = document.createElement("label"), text = document.createElement("span");
      const slider = document.createElement("input"), output = document.createElement("output");
      label.className = "size";
      text.textContent = name;
      Object.assign(slider, { type: "range", min: 0, max: values.length - 1, id: `size-${name}` });
      state.sizes[name] = Math.min(state.sizes[name], values.length - 1);
      slider.value = state.sizes[name];
      label.append(text, slider, output);
      return label;
    }));
  };
  const fill = () => {
    for (const axis of AXES) if (axis !== "gpu") one(axis).value = state[axis];
    boxes.forEach((box, gpu) => { box.checked = state.gpus.has(gpu); });
    asked.forEach((field, gpu) => { field.value = prices[gpu] ?? ""; });
    sliders();
  };
  const gather = () => {
    const before = state.workload, batch = Object.fromEntries(sizesOf(state).map(([n, v]) => [n, v[state.sizes[n]]]));
    for (const axis of AXES) if (axis !== "gpu") state[axis] = Number(one(axis).value);
    state.gpus = new Set(boxes.flatMap((box, gpu) => (box.checked ? [gpu] : [])));
    asked.forEach((field, gpu) => { prices[gpu] = field.value === "" || !(Number(field.value) >= 0) ? null : Number(field.value); });
    for (const slider of all("#sizes input")) state.sizes[slider.id.slice(5)] = Number(slider.value);
    if (before !== state.workload) {
      for (const [name, values] of sizesOf(state)) if (name in batch) state.sizes[name] = nearest(values, batch[name]);
      sliders();
    }
  };

  // --- what is shown
  const cards = choices.gpu.map((name, gpu) => {
    const card = one("card").content.firstElementChild.cloneNode(true);
    card.setAttribute("aria-label", name);
    card.querySelector("h3").textContent = data.gpus[gpu].name;
    for (const button of all("[data-pin]", card)) {
      button.setAttribute("aria-label", `Pin ${name} as ${button.dataset.pin.toUpperCase()}`);
      button.addEventListener("click", () => {
        state.pins[button.dataset.pin] = { ...here(gpu), sizes: { ...state.sizes } };
        later();
      });
    }
    return card;
  });
  one("cards").append(...cards);
  const here = (gpu) => ({ workload: state.workload, gpu, execution: state.execution, host: state.host, limit: state.limit, sizes: state.sizes });
  const put = (root, name, text) => {
    const node = root.querySelector(`[data-is=${name}]`);
    if (node.textContent !== text) node.textContent = text;
  };
  const limits = choices.limit.map((share) => (share === 1 ? "the board’s own" : `${Math.round(share * 100)} %`));
  const worded = (s) => [
    choices.workload[s.workload], ...sizesOf(s).map(([name, values]) => `${name} ${values[s.sizes[name]]}`),
    choices.execution[s.execution], ...(choices.host.length > 1 ? [`host ${choices.host[s.host]}`] : []),
    ...(s.limit ? [`power limit ${limits[s.limit]}`] : []),
  ].join(", ");
  const drawCard = (card, gpu, found, longest) => {
    put(card, "time", seconds(found.total_s));
    put(card, "interval", `90% interval ${seconds(found.low_s)} to ${seconds(found.high_s)}, `);
    put(card, "made", found.interpolated ? `interpolated (within ${data.error})` : "predicted");
    for (const [name, text] of Object.entries(FACTS)) put(card, name, text(found, data.gpus[gpu]));
    card.querySelector("[data-is=memory]").classList.toggle("bad", !found.fits);
    const bar = card.querySelector("svg"), rects = all("rect", bar);
    bar.setAttribute("aria-label", regimes.map((name) => `${name} ${percent(found[name])}`).join(", "));
    let x = 0;
    regimes.forEach((name, k) => {
      const width = (1000 * found.total_s * found[name]) / longest;
      rects[k].setAttribute("x", x.toFixed(1));
      rects[k].setAttribute("width", Math.max(0, width).toFixed(1));
      x += width;
    });
    rects[regimes.length].setAttribute("x", ((1000 * found.low_s) / longest).toFixed(1));
    rects[regimes.length].setAttribute("width", ((1000 * (found.high_s - found.low_s)) / longest).toFixed(1));
  };
  const cell = (tag, text, className) => {
    const made = document.createElement(tag);
    if (tag === "th") made.scope = "row";
    made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const row = (...cells) => {
    const made = document.createElement("tr");
    made.append(...cells);
    return made;
  };
  const svg = (tag, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const drawPins = () => {
    const { a, b } = state.pins;
    for (const card of cards) {
      for (const button of all("[data-pin]", card)) {
        const pin = state.pins[button.dataset.pin];
        const now = here(cards.indexOf(card));
        button.setAttribute("aria-pressed", pin !== undefined && pin.gpu === now.gpu && worded(pin) === worded(now));
      }
    }
    one("between").hidden = !(a && b);
    one("hint").hidden = Boolean(a && b);
    if (!a && !b) { one("hint").textContent = "Pin two states, such as one GPU before and after a change: the difference between them appears here."; return; }
    if (!(a && b)) { const [name, s] = a ? ["A", a] : ["B", b]; one("hint").textContent = `${name} is ${choices.gpu[s.gpu]}, ${worded(s)}. Pin the other too.`; return; }
    const [from, to] = [look(a), look(b)];
    const steps = [[`A: ${choices.gpu[a.gpu]}`, 0, from.total_s, "total"]];
    let at = from.total_s;
    for (const name of regimes) {
      const delta = to[name] * to.total_s - from[name] * from.total_s;
      steps.push([data.meanings[name], Math.min(at, at + delta), Math.abs(delta), delta < 0 ? "less" : "more", delta]);
      at += delta;
    }
    steps.push([`B: ${choices.gpu[b.gpu]}`, 0, to.total_s, "total"]);
    const longest = Math.max(...steps.map(([, x, width]) => x + width));
    one("fall").replaceChildren(...steps.map(([label, x, width, look_, delta]) => {
      const bar = svg("svg", { class: "bar", viewBox: "0 0 1000 20", preserveAspectRatio: "none", "aria-hidden": "true" });
      bar.append(svg("rect", { class: "track", y: 9.5, width: 1000, height: 1 }));
      bar.append(svg("rect", { class: `fill ${look_}`, x: (1000 * x) / longest, width: Math.max(1.5, (1000 * width) / longest), height: 20 }));
      const middle = cell("td", "", "barcell");
      middle.append(bar);
      const sign = delta === undefined ? "" : delta < 0 ? "−" : "+";
      const made = row(cell("th", label), middle, cell("td", sign + seconds(width), "n"));
      if (look_ === "total") made.className = "total";
      return made;
    }));
    const lines = [["GPU", choices.gpu[a.gpu], choices.gpu[b.gpu]], ["State", worded(a), worded(b)],
      ["Time", seconds(from.total_s), seconds(to.total_s)],
      ["90% interval", `${seconds(from.low_s)} to ${seconds(from.high_s)}`, `${seconds(to.low_s)} to ${seconds(to.high_s)}`],
      ...Object.entries(FACTS).map(([name, text]) => [data.facts[name], text(from, data.gpus[a.gpu]), text(to, data.gpus[b.gpu])])];
    one("both").replaceChildren(...lines.map(([label, x, y]) => row(cell("th", label), cell("td", x, "n"), cell("td", y, "n"))));
  };
  const box = () => {
    const narrow = innerWidth < 760;
    return { left: 58, right: narrow ? 385 : 745, top: 26, bottom: narrow ? 285 : 345 };
  };
  const SHAPES = { compute: "M-6-6h12v12h-12z", memory: "M-6 0a6 6 0 1 0 12 0a6 6 0 1 0-12 0z", latency: "M-7 6h14l-7-12z", overhead: "M-7-6h14l-7 12z" };
  const drawRoofs = (shown) => {
    const chart = one("roofs"), BOX = box();
    chart.setAttribute("viewBox", `0 0 ${BOX.right + 15} ${BOX.bottom + 42}`);
    const marks = shown.filter(({ found }) => found.flop > 0 && found.bytes > 0).map(({ gpu, found }) => ({
      gpu, found, x: found.flop / found.bytes, y: found.flop / found.total_s, roof: data.roofs[state.workload][gpu] }));
    if (!marks.length) { chart.replaceChildren(); return; }
    const xs = marks.flatMap(({ x, roof }) => [x, roof.peak / roof.bandwidth]);
    const tops = marks.map(({ roof }) => roof.peak);
    const x0 = Math.floor(Math.log10(Math.min(...xs)) - 0.5), x1 = Math.ceil(Math.log10(Math.max(...xs)) + 0.3);
    const y1 = Math.ceil(Math.log10(Math.max(...tops)) + 0.1);
    const y0 = Math.min(y1 - 2, Math.floor(Math.log10(Math.min(...marks.map(({ y }) => y))) - 0.3));
    const px = (x) => BOX.left + ((Math.log10(x) - x0) / (x1 - x0)) * (BOX.right - BOX.left);
    const py = (y) => BOX.bottom - ((Math.log10(y) - y0) / (y1 - y0)) * (BOX.bottom - BOX.top);
    const grid = svg("g", { class: "grid" }), ticks = svg("g", { class: "ticks" }), roofs = svg("g", {}), names = svg("g", { class: "names" });
    for (let k = x0; k <= x1; k++) {
      grid.append(svg("path", { d: `M${px(10 ** k)} ${BOX.top}V${BOX.bottom}` }));
      ticks.append(svg("text", { x: px(10 ** k), y: BOX.bottom + 17, "text-anchor": "middle" }, 10 ** k >= 1 ? String(10 ** k) : (10 ** k).toFixed(-k)));
    }
    for (let k = y0; k <= y1; k++) {
      grid.append(svg("path", { d: `M${BOX.left} ${py(10 ** k)}H${BOX.right}` }));
      ticks.append(svg("text", { x: BOX.left - 7, y: py(10 ** k) + 4, "text-anchor": "end" }, scaled(10 ** k, "", SI, 1000).replace(/\.0+/, "")));
    }
    ticks.append(svg("text", { x: BOX.right, y: BOX.bottom + 36, "text-anchor": "end" }, "FLOP per byte"));
    ticks.append(svg("text", { x: BOX.left, y: 14, "text-anchor": "middle" }, "FLOP/s"));
    for (const { gpu, found, x, y, roof } of marks) {
      const ridge = roof.peak / roof.bandwidth, start = Math.max(10 ** x0, 10 ** y0 / roof.bandwidth);
      roofs.append(svg("path", { class: "roof", d: `M${px(start)} ${py(start * roof.bandwidth)}L${px(ridge)} ${py(roof.peak)}H${BOX.right}` }));
      names.append(svg("text", { class: "roofname", x: BOX.right, y: py(roof.peak) - 5, "text-anchor": "end" }, `${choices.gpu[gpu]}, ${roof.name}`));
      roofs.append(svg("path", { class: `mark ${found.regime}`, d: SHAPES[found.regime], transform: `translate(${px(x)} ${py(y)})` }));
      names.append(svg("text", { x: px(x) + 10, y: py(y) + 4 }, choices.gpu[gpu]));
    }
    chart.setAttribute("aria-label", `Roofline: ${marks.map(({ gpu, found, x, y }) => `${choices.gpu[gpu]} reaches ${flop(y)}/s at ${digits(x)} FLOP per byte, ${found.regime}-bound`).join("; ")}`);
    chart.replaceChildren(grid, roofs, ticks, names);
  };
  let waiting = 0, saying = 0;
  const draw = () => {
    waiting = 0;
    const shown = [...state.gpus].map((gpu) => ({ gpu, found: look(here(gpu)) }));
    const longest = Math.max(...shown.map(({ found }) => found.high_s), 0);
    cards.forEach((card, gpu) => { card.hidden = !state.gpus.has(gpu); });
    for (const { gpu, found } of shown) drawCard(cards[gpu], gpu, found, longest);
    for (const slider of all("#sizes input")) {
      const name = slider.id.slice(5), [, values] = sizesOf(state).find(([known]) => known === name);
      slider.setAttribute("aria-valuetext", values[state.sizes[name]]);
      slider.nextElementSibling.textContent = values[state.sizes[name]];
    }
    one("state").textContent = worded(state);
    drawPins();
    drawRoofs(shown);
    clearTimeout(saying);
    saying = setTimeout(() => {
      save();
      one("said").textContent = shown.map(({ gpu, found }) => `${choices.gpu[gpu]}: ${seconds(found.total_s)}, ${found.regime}-bound`).join("; ");
    }, 250);
  };
  const later = () => { waiting ||= requestAnimationFrame(draw); };
  form.addEventListener("input", () => { gather(); later(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  one("unpin").addEventListener("click", () => { state.pins = {}; later(); });
  addEventListener("resize", later);
  addEventListener("hashchange", () => { load(); fill(); draw(); });
  all("#limit option").forEach((option, k) => { option.textContent = limits[k]; });
  load();
  fill();
  draw();
})();
