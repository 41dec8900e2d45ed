// Elements, numbers as text, and a range of an axis that can be zoomed and moved: what all parts of the page share.
const made = (space, tag, attributes, children) => {
  const element = space ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
};
const html = (tag, attributes, ...children) => made(false, tag, attributes, children);
const svg = (tag, attributes, ...children) => made(true, tag, attributes, children);

const whole = (value) => Math.round(value).toLocaleString("en-US");
const short = (value) => {
  const amount = Math.abs(value);
  if (amount >= 1000 || value === 0) return whole(value);
  if (amount >= 100) return value.toFixed(1);
  return amount >= 10 ? value.toFixed(2) : String(Number(value.toPrecision(4)));
};
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const scaled = (value, units) => {
  const found = units.find(([, factor]) => Math.abs(value) >= factor) ?? units[units.length - 1];
  return [value / found[1], found[0]];
};
const duration = (seconds) => {
  const [value, unit] = scaled(seconds, [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]]);
  return seconds ? `${short(value)} ${unit}` : "0 s";
};
const size = (bytes) => {
  const [value, unit] = scaled(bytes, [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]]);
  return `${unit === "B" ? whole(value) : value.toFixed(1)} ${unit}`;
};
const metric = (value, unit) => {
  const [number, prefix] = scaled(value, [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3], ["", 1]]);
  return value ? `${short(number)} ${prefix}${unit}` : `0 ${unit}`;
};

// Round numbers between two values, about `count` of them, and how far apart they are.
const ticks = (low, high, count) => {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= rough);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high * (1 + 1e-12); n += 1) found.push(n * step || 0);
  return { step, found };
};

// The part of an axis from `low` to `high` that is in view.
class Range {
  constructor(low, high, least, changed) {
    Object.assign(this, { first: low, last: high, least, changed });
    [this.low, this.high] = [low, high];
  }
  get length() { return this.high - this.low; }
  set(low, high) {
    const length = Math.min(Math.max(high - low, this.least), this.last - this.first);
    this.low = Math.min(Math.max(low, this.first), this.last - length);
    this.high = this.low + length;
    this.changed();
  }
  zoom(factor, at = (this.low + this.high) / 2) {
    const length = Math.max(this.length / factor, this.least);
    const share = (at - this.low) / this.length;
    this.set(at - share * length, at + (1 - share) * length);
  }
  move(share) { this.set(this.low + share * this.length, this.high + share * this.length); }
  all() { this.set(this.first, this.last); }
}

// Buttons, wheel (with Ctrl or Shift), dragging and keys for a range; `place` gives the value below the pointer.
const KEYS = { "+": (range) => range.zoom(2), "=": (range) => range.zoom(2), "-": (range) => range.zoom(0.5),
  0: (range) => range.all(), Home: (range) => range.all() };
const steer = (element, range, place, keys) => {
  element.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    const amount = event.deltaY || event.deltaX;
    if (event.ctrlKey) range.zoom(Math.exp(-amount / 300), place(event));
    else range.move(amount / 600);
  }, { passive: false });
  let from = null;
  element.addEventListener("pointerdown", (event) => {
    if (event.button === 0) from = { x: event.clientX, value: place(event), low: range.low, moved: false };
  });
  element.addEventListener("pointermove", (event) => {
    if (!from || !event.buttons) return;
    if (!from.moved && Math.abs(event.clientX - from.x) < 4) return;
    if (!from.moved) element.setPointerCapture(event.pointerId);
    from.moved = true;
    const by = place(event) - from.value;
    range.set(range.low - by, range.high - by);
  });
  element.addEventListener("pointerup", () => { from = null; });
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowLeft: -0.25, ArrowRight: 0.25 };
    const action = event.shiftKey && moves[event.key] ? () => range.move(moves[event.key]) : keys[event.key] ?? KEYS[event.key];
    if (!action) return;
    event.preventDefault();
    action(range);
  });
};
const toolbar = (range, what) => {
  const button = (label, text, action) =>
    html("button", { type: "button", "aria-label": `${label}: ${what}`, title: label, click: action }, text);
  return html("div", { class: "toolbar", role: "group", "aria-label": `View of ${what}` },
    button("Zoom in", "+", () => range.zoom(2)), button("Zoom out", "−", () => range.zoom(0.5)),
    button("Move left", "←", () => range.move(-0.5)), button("Move right", "→", () => range.move(0.5)),
    button("Show all", "all", () => range.all()));
};

// What a picture says about the chosen part: names and values, read out when they change.
const details = () => html("dl", { class: "chosen", "aria-live": "polite" });
const describe = (list, pairs) => list.replaceChildren(...pairs.map(([name, value]) =>
  html("div", {}, html("dt", {}, name), html("dd", {}, value))));
const legend = (entries) => html("ul", { class: "legend" }, entries.map(([name, look]) =>
  html("li", {}, svg("svg", { width: 22, height: 12, "aria-hidden": "true" },
    svg("rect", { width: 22, height: 12, fill: look.fill, class: "outlined" })), name)));
// Draws again whenever the element has another width, and for paper at the width of a page.
const PAPER_WIDTH = 700;
const drawnAtItsWidth = (element, draw) => {
  let before = 0;
  const onScreen = () => {
    const width = Math.floor(element.clientWidth);
    if (width && width !== before) { before = width; draw(width); }
  };
  new ResizeObserver(onScreen).observe(element);
  addEventListener("beforeprint", () => { before = 0; draw(PAPER_WIDTH); });
  addEventListener("afterprint", onScreen);
};
