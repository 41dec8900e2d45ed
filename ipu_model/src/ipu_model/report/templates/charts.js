// Areas on top of each other along an axis of whole numbers (tiles, steps), with a limit and a cursor.
class Stack {
  // `series` are { name, look, values }, the lowest first; `facts(place)` describes one place of the axis.
  constructor(host, { label, series, limit, limitName, marks, xTitle, facts, start }) {
    Object.assign(this, { series, limit, limitName, marks, xTitle, facts, place: start ?? 0 });
    this.count = Math.max(1, ...series.map((each) => each.values.length));
    this.totals = Array.from({ length: this.count }, (_, place) =>
      series.reduce((sum, each) => sum + (each.values[place] ?? 0), 0));
    this.top = Math.max(limit, ...this.totals) * 1.12 || 1;
    this.range = new Range(0, this.count, Math.min(8, this.count), () => this.draw());
    this.picture = svg("svg", { class: "picture", role: "application", tabindex: 0, "aria-label": label });
    this.chosen = details();
    host.replaceChildren(toolbar(this.range, label.split(":")[0]), this.picture,
      legend(series.filter((each) => each.values.some(Boolean)).map((each) => [each.name, each.look])), this.chosen);
    steer(this.picture, this.range, (event) => this.at(event.offsetX), {
      ArrowRight: () => this.choose(this.place + 1, true), ArrowLeft: () => this.choose(this.place - 1, true),
      Enter: () => this.choose(this.fullest(), true), Escape: () => this.range.all(),
    });
    this.picture.addEventListener("click", (event) => this.choose(Math.floor(this.at(event.offsetX))));
    this.choose(this.place);
    drawnAtItsWidth(this.picture.parentElement, (width) => { this.width = width; this.draw(); });
  }

  fullest() { return this.totals.indexOf(Math.max(...this.totals)); }
  x(place) { return 62 + (place - this.range.low) / this.range.length * (this.width - 66); }
  at(x) { return this.range.low + (x - 62) / (this.width - 66) * this.range.length; }
  y(value) { return 226 - value / this.top * 210; }

  choose(place, follow) {
    this.place = Math.min(Math.max(place, 0), this.count - 1);
    describe(this.chosen, this.facts(this.place, this.totals[this.place]));
    const outside = this.place < this.range.low || this.place >= this.range.high;
    if (follow && outside) this.range.set(this.place - this.range.length / 2, this.place + this.range.length / 2);
    else if (this.width) this.draw();
  }

  // One place for each column of pixels: the fullest of those that fall into it.
  columns() {
    const first = Math.floor(this.range.low), last = Math.min(Math.ceil(this.range.high), this.count);
    const step = Math.max(1, (last - first) / Math.max(50, this.width - 66));
    const found = [];
    for (let from = first; from < last; from += step) {
      const low = Math.floor(from), high = Math.min(last, Math.max(low + 1, Math.floor(from + step)));
      let best = low;
      for (let place = low + 1; place < high; place += 1) if (this.totals[place] > this.totals[best]) best = place;
      found.push({ place: best, low, high });
    }
    return found;
  }

  draw() {
    const columns = this.columns();
    const floor = columns.map(() => 0);
    const areas = this.series.map((each) => {
      const lower = floor.map((value) => this.y(value).toFixed(1));
      columns.forEach((column, n) => { floor[n] += each.values[column.place] ?? 0; });
      if (!floor.some((value, n) => this.y(value).toFixed(1) !== lower[n])) return null;
      const xs = columns.map((column) => [this.x(column.low).toFixed(1), this.x(column.high).toFixed(1)]);
      const over = columns.map((_, n) => `L${xs[n][0]} ${this.y(floor[n]).toFixed(1)}L${xs[n][1]} ${this.y(floor[n]).toFixed(1)}`);
      const under = columns.map((_, n) => `L${xs[n][1]} ${lower[n]}L${xs[n][0]} ${lower[n]}`).reverse();
      return svg("path", { d: `M${over.join("").slice(1)}${under.join("")}Z`, fill: each.look.fill });
    });
    const rows = ticks(0, this.top / 1024, 5).found.map((value) => svg("g", {},
      svg("line", { x1: 62, x2: this.width - 4, y1: this.y(value * 1024), y2: this.y(value * 1024), class: "grid" }),
      svg("text", { x: 58, y: this.y(value * 1024) + 4, class: "tick end" }, `${whole(value)} KiB`)));
    const below = this.placesNamed().map(([at, name]) => svg("text", { x: this.x(at), y: 242, class: "tick" }, whole(name)));
    const middle = this.x(this.place + 0.5);
    const marked = this.marks.filter((each) => each.at < this.range.high && (each.to ?? each.at) > this.range.low);
    const borders = marked.flatMap((each) => {
      const from = Math.max(each.at, this.range.low), to = Math.min(each.to, this.range.high);
      const room = (this.x(to) - this.x(from)) / ROOM > each.name.length;
      return [each.at > this.range.low ? svg("line", { x1: this.x(each.at), x2: this.x(each.at), y1: 4, y2: 226, class: "border" }) : null,
        room ? svg("text", { x: (this.x(from) + this.x(to)) / 2, y: 13, class: "tick" }, each.name) : null];
    }).filter(Boolean);
    this.picture.setAttribute("viewBox", `0 0 ${this.width} 262`);
    this.picture.replaceChildren(
      svg("clipPath", { id: `${this.clip ??= `clip-${Stack.made = (Stack.made ?? 0) + 1}`}` },
        svg("rect", { x: 62, y: 0, width: this.width - 66, height: 230 })),
      ...rows, svg("g", { "clip-path": `url(#${this.clip})` }, areas.filter(Boolean), borders),
      ...["below-limit", "limit"].map((name) => svg("line", { x1: 62, x2: this.width - 4, y1: this.y(this.limit), y2: this.y(this.limit), class: name })),
      svg("text", { x: this.width - 6, y: this.y(this.limit) - 4, class: "tick end halo" }, this.limitName),
      middle >= 62 && middle <= this.width ? svg("path", { d: `M${middle} 0V226`, class: "cursor" }) : svg("g"),
      svg("line", { x1: 62, x2: this.width - 4, y1: 226, y2: 226, class: "axis" }), ...below,
      svg("text", { x: this.width - 4, y: 258, class: "tick end" }, this.xTitle));
  }

  // Places with a tick, and what it says: places count from the start of the part that they are in, as an IPU's tiles do.
  placesNamed() {
    const parts = this.marks.filter((each) => each.restart);
    const every = parts.length ? parts : [{ at: 0, to: this.count }];
    return every.flatMap((part) => {
      const low = Math.max(part.at, this.range.low), high = Math.min(part.to, this.range.high);
      if (high <= low) return [];
      const { found } = ticks(low - part.at, high - part.at, (this.x(high) - this.x(low)) / 90);
      return found.filter((value) => Number.isInteger(value) && value < part.to - part.at - (parts.length > 1 ? found[1] * 0.3 : 0))
        .map((value) => [part.at + value, value]);
    });
  }
}

// The roofline: what each kind of contraction reaches, over the FLOPs that it does for each byte it reads and writes.
class Roofline {
  constructor(host, data, ops) {
    const points = ops.all.filter((op) => ops.flops(op) && ops.bytes(op) && ops.perRun(op)).map((op) => ({ op,
      x: ops.flops(op) / ops.bytes(op), y: ops.flops(op) / ops.perRun(op) * data.clock_hz,
      weight: ops.perCall(op) })).sort((a, b) => b.weight - a.weight).slice(0, 600);
    if (!points.length) { host.closest("figure").remove(); return; }
    const peaks = [...new Set(ops.all.map((op) => ops.peak(op)).filter(Boolean))].map((peak) => peak * data.clock_hz);
    const slopes = [["tile memory", data.memory_bytes_per_cycle], ["exchange", data.exchange_bytes_per_cycle]]
      .map(([name, bytes]) => [name, bytes * data.tiles * data.clock_hz]);
    Object.assign(this, { points, peaks: peaks.sort((a, b) => b - a), slopes, ops });
    this.most = points[0].weight;
    this.chosen = details();
    this.picture = svg("svg", { class: "picture", role: "img", "aria-label": host.dataset.label });
    host.replaceChildren(this.picture, this.chosen);
    this.picture.addEventListener("click", (event) => event.target.point && this.choose(event.target.point));
    this.choose(points[0]);
    drawnAtItsWidth(host, (width) => { this.width = width; this.draw(); });
  }
  choose(point) {
    this.point = point;
    describe(this.chosen, [["op", this.ops.name(point.op)], ["reaches", metric(point.y, "FLOP/s")],
      ["FLOPs a byte", short(point.x)], ...this.ops.facts(point.op)]);
    if (this.width) this.draw();
  }
  draw() {
    const { points, width } = this;
    const exponent = (value) => Math.log10(value);
    const left = Math.floor(exponent(Math.min(...points.map((each) => each.x)))), right = Math.ceil(exponent(Math.max(...points.map((each) => each.x), 100)));
    const low = Math.floor(exponent(Math.min(...points.map((each) => each.y)))), high = exponent(this.peaks[0] ?? points[0].y) + 0.25;
    const x = (value) => 76 + (exponent(value) - left) / (right - left) * (width - 88);
    const y = (value) => 262 - (exponent(value) - low) / (high - low) * 244;
    const grid = [];
    for (let n = left; n <= right; n += 1) grid.push(svg("line", { x1: x(10 ** n), x2: x(10 ** n), y1: 14, y2: 262, class: "grid" }),
      svg("text", { x: x(10 ** n), y: 278, class: n === right ? "tick end" : "tick" }, whole(10 ** n) === "0" ? String(10 ** n) : whole(10 ** n)));
    for (let n = low; n <= high; n += 1) grid.push(svg("line", { x1: 76, x2: width - 12, y1: y(10 ** n), y2: y(10 ** n), class: "grid" }),
      svg("text", { x: 72, y: y(10 ** n) + 4, class: "tick end" }, metric(10 ** n, "FLOP/s").replace(/\.0+(?= )/, "")));
    const lines = [];
    for (const peak of this.peaks) lines.push(svg("path", { d: `M76 ${y(peak)}H${width - 12}`, class: "limit" }),
      svg("text", { x: width - 14, y: y(peak) - 4, class: "tick end halo" }, `matrix units: ${metric(peak, "FLOP/s")}`));
    this.slopes.forEach(([name, rate], n) => {
      const top = this.peaks[0] ?? points[0].y, from = Math.max(10 ** left, 10 ** low / rate), to = Math.min(10 ** right, top / rate);
      if (to <= from) return;
      const at = from * (to / from) ** 0.45;
      lines.push(svg("path", { d: `M${x(from)} ${y(from * rate)}L${x(to)} ${y(to * rate)}`, class: n ? "slope dashed" : "slope" }),
        svg("text", { x: x(at) - (n ? -6 : 40), y: y(at * rate) + (n ? 16 : -10), class: `tick start halo` }, `${name}: ${metric(rate, "B/s")}`));
    });
    const dots = [...points].reverse().map((each) => {
      const dot = svg("circle", { cx: x(each.x), cy: y(each.y), r: 3 + 8 * Math.sqrt(each.weight / this.most),
        fill: (LOOKS.families[this.ops.family(each.op)] ?? LOOKS.other).fill, class: each === this.point ? "selected" : "dot" });
      dot.point = each;
      return dot;
    });
    this.picture.setAttribute("viewBox", `0 0 ${width} 300`);
    this.picture.replaceChildren(...grid, ...lines, ...dots,
      svg("text", { x: width - 12, y: 296, class: "tick end" }, "FLOPs for each byte read or written"));
  }
}
