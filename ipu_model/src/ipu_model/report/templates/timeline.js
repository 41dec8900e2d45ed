// The timeline: rows of items that hold other items, from the call down to the ops of one pass.
// An item has a start, an end and a kind; `inside()` gives the items in it in the order in which they run.
const LETTERS = { forward: "F", recompute: "R", backward: "B" };
const ROW = 30, BAR = 22, OPS = 20, LEAST = 0.7, ROOM = 6.2, OPS_FROM = 90;

// The ops that a stage runs in one micro-batch, from the order in which memory is followed.
const sequences = (memory, ops) => {
  const found = new Map();
  for (const each of memory) {
    let before = "";
    each.steps.op.forEach((op, index) => {
      const phase = TEXT(each.steps.phase[index]);
      const key = `${op} ${phase}`;
      if (op < 0 || key === before) return;
      before = key;
      const pass = phase === "recompute" ? "backward" : phase;
      const list = `${each.ipu} ${pass} ${phase === "update" ? "" : each.steps.stage[index]}`;
      if (!found.has(list)) found.set(list, []);
      found.get(list).push({ op, phase, cycles: ops.perRun(op) });
    });
  }
  return found;
};

class Item {
  constructor(parent, kind, start, end, about = {}) { Object.assign(this, { parent, kind, start, end }, about); }
  get seconds() { return this.end - this.start; }
}

class Timeline {
  constructor(host, data, ops) {
    this.ops = ops;
    this.order = sequences(data.memory, ops);
    this.call = new Item(null, "call", 0, data.call_seconds, { label: "one call" });
    this.rows = data.rows.map(([name, spans]) => ({ name, items: this.itemsOf(name, spans) }));
    const last = Math.max(data.call_seconds, ...this.rows.map((row) => row.items.at(-1)?.end ?? 0)) || 1e-9;
    this.range = new Range(0, last, 2e-7, () => this.draw());
    this.picture = svg("svg", { class: "picture", role: "application", tabindex: 0,
      "aria-label": host.dataset.label, "aria-describedby": "timeline-keys" });
    this.path = html("nav", { class: "path", "aria-label": "Where the chosen part is" });
    this.chosen = details();
    host.replaceChildren(toolbar(this.range, "the timeline"), this.picture, this.keys(), this.path, this.chosen);
    steer(this.picture, this.range, (event) => this.at(event.offsetX), {
      ArrowRight: () => this.next(1), ArrowLeft: () => this.next(-1),
      ArrowDown: () => this.otherRow(1), ArrowUp: () => this.otherRow(-1),
      Enter: () => this.zoomTo(this.item), Escape: () => this.zoomTo(this.item?.parent ?? this.call),
    });
    this.picture.addEventListener("click", (event) => event.target.item && this.choose(event.target.item));
    this.picture.addEventListener("dblclick", (event) => event.target.item && this.zoomTo(event.target.item));
    this.choose(this.call);
    drawnAtItsWidth(this.picture.parentElement, (width) => { this.width = width; this.draw(); });
  }

  // Spans with the same number of repeats, one after another, are a block: its parts alternate that many times.
  itemsOf(row, spans) {
    const items = [], latest = new Map(), ipu = Number(row.match(/^IPU (\d+)/)?.[1] ?? NaN);
    const piece = (n) => ({ kind: TEXT(spans.kind[n]), seconds: spans.seconds[n], stage: spans.stage[n],
      microBatch: spans.microBatch[n], label: TEXT(spans.label[n]), ipu });
    for (let n = 0; n < spans.kind.length; n += 1) {
      const repeats = spans.repeats[n], start = spans.start[n];
      const pieces = [piece(n)];
      while (repeats > 1 && spans.repeats[n + 1] === repeats && n + 1 < spans.kind.length) pieces.push(piece(n += 1));
      if (repeats > 1) {
        const end = spans.start[n] + spans.seconds[n];
        const first = pieces.map((each) => (latest.get(`${each.kind} ${each.stage}`) ?? NaN) + 1);
        items.push(new Item(this.call, "block", start, end, { repeats, pieces, first, label: pieces[0].label }));
        pieces.forEach((each, index) => latest.set(`${each.kind} ${each.stage}`, first[index] + repeats - 1));
      } else {
        if (pieces[0].microBatch !== null) latest.set(`${pieces[0].kind} ${pieces[0].stage}`, pieces[0].microBatch);
        items.push(...this.passes(this.call, start, pieces, items));
      }
    }
    return items;
  }

  // Items of pieces one after another. A backward pass follows the recomputation before it in one item, in which both
  // alternate as they run.
  passes(parent, start, pieces, before = []) {
    const items = [];
    let at = start;
    for (const each of pieces) {
      const last = items.at(-1) ?? before.at(-1);
      const end = at + each.seconds;
      if (each.kind === "backward" && last?.kind === "recompute" && last.stage === each.stage &&
          last.microBatch === each.microBatch && last.parent === parent) {
        Object.assign(last, { kind: "backward", end, parts: [last.seconds, each.seconds] });
      } else {
        const { kind, stage, microBatch, label, ipu } = each;
        items.push(new Item(parent, kind, at, end, { stage, microBatch, label, ipu }));
      }
      at = end;
    }
    return items;
  }

  repeat(block, number) {
    block.known ??= new Map();
    if (!block.known.has(number)) {
      const each = block.seconds / block.repeats, start = block.start + number * each;
      const pieces = block.pieces.map((piece, index) => ({ ...piece, seconds: piece.seconds / block.repeats,
        microBatch: Number.isNaN(block.first[index]) ? null : block.first[index] + number }));
      const cycle = new Item(block, "cycle", start, start + each, { label: `${whole(number + 1)} of ${whole(block.repeats)}` });
      cycle.items = this.passes(cycle, start, pieces);
      block.known.set(number, cycle);
    }
    return block.known.get(number);
  }

  // The ops of a pass, and runs of ops of one phase; both fill the pass.
  opsOf(item) {
    if (item.ops !== undefined) return item.ops;
    const stage = item.kind === "update" ? "" : item.stage;
    const list = this.order.get(`${item.ipu} ${item.kind === "recompute" ? "backward" : item.kind} ${stage}`) ?? [];
    const wanted = item.kind === "backward" && !item.parts ? list.filter((each) => each.phase === "backward") : list;
    const total = wanted.reduce((sum, each) => sum + each.cycles, 0);
    item.ops = [];
    item.runs = [];
    let at = item.start;
    for (const each of total ? wanted : []) {
      const end = at + each.cycles / total * item.seconds;
      const run = item.runs.at(-1);
      if (run?.kind === each.phase) run.end = end;
      else item.runs.push(new Item(item, each.phase, at, end, { stage: item.stage, microBatch: item.microBatch, isRun: true }));
      item.ops.push(new Item(item.runs.at(-1), "op", at, end, { op: each.op, phase: each.phase, microBatch: item.microBatch }));
      at = end;
    }
    return item.ops;
  }

  // ----------------------------------------------------------------------------------------------- drawing
  get left() { return this.width < 560 ? 46 : 66; }
  x(seconds) { return this.left + (seconds - this.range.low) / this.range.length * (this.width - this.left - 4); }
  at(x) { return this.range.low + (x - this.left) / (this.width - this.left - 4) * this.range.length; }

  draw() {
    if (!this.width) return;
    this.shown = this.rows.map(() => []);
    const layer = svg("g");
    let y = 26;
    this.rows.forEach((row, index) => {
      this.bin = null;
      this.opsShown = false;
      const group = svg("g");
      for (const item of row.items) this.paint(group, item, y, index);
      this.flush(group, y);
      const height = ROW + (this.opsShown ? OPS : 0);
      layer.append(svg("text", { x: this.left - 6, y: y + 15, class: "label end" }, row.name), group);
      row.y = y;
      y += height;
    });
    const { low, high } = this.range;
    const axis = ticks(low, high, this.width / 110);
    const [, unit] = scaled(Math.max(high - low, axis.step), [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]]);
    const factor = { s: 1, ms: 1e-3, "µs": 1e-6, ns: 1e-9 }[unit];
    const digits = Math.max(0, Math.ceil(-Math.log10(axis.step / factor) - 1e-9));
    const marks = axis.found.map((value) => svg("g", {},
      svg("line", { x1: this.x(value), x2: this.x(value), y1: 20, y2: y, class: "grid" }),
      svg("text", { x: this.x(value), y: 14, class: "tick" }, (value / factor).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }))));
    const end = this.x(this.call.end);
    const next = end < this.width - 2 && end >= this.left
      ? [svg("line", { x1: end, x2: end, y1: 18, y2: y, class: "limit" })] : [];
    const clip = svg("clipPath", { id: "timeline-clip" },
      svg("rect", { x: this.left, y: 0, width: this.width - this.left, height: y }));
    this.picture.setAttribute("viewBox", `0 0 ${this.width} ${y + 18}`);
    this.picture.replaceChildren(clip, ...marks, layer, ...next, this.outline(),
      svg("text", { x: this.width - 4, y: y + 13, class: "tick end" }, `time since the call began (${unit})`));
    for (const group of layer.querySelectorAll("g")) group.setAttribute("clip-path", "url(#timeline-clip)");
  }

  paint(group, item, y, row) {
    const x0 = this.x(item.start), x1 = this.x(item.end), width = x1 - x0;
    if (x1 < this.left || x0 > this.width) return;
    if (width < LEAST) { this.gather(group, item, x0, width, y); return; }
    if (item.kind === "block") { this.paintBlock(group, item, x0, width, y, row); return; }
    this.flush(group, y);
    this.shown[row].push(item);
    const ops = width > OPS_FROM ? this.opsOf(item) : [];
    if (item.kind === "backward" && item.parts) this.opsOf(item);
    const runs = item.parts && item.runs.length > 1 && width / item.runs.length > 2 ? item.runs : [item];
    for (const run of runs) this.bar(group, run, item, y, run.parts ? this.shares(item) : null);
    this.write(group, this.letter(item), x0, width, y + 15, item.parts ? LOOKS.spans.backward : this.look(item));
    if (ops.length) {
      this.opsShown = true;
      for (const op of ops) this.paintOp(group, op, y + BAR + 3, row);
    }
  }

  paintBlock(group, block, x0, width, y, row) {
    const each = width / block.repeats;
    if (each >= 5) {
      const length = block.seconds / block.repeats;
      const first = Math.max(0, Math.floor((this.range.low - block.start) / length));
      const last = Math.min(block.repeats - 1, Math.floor((this.range.high - block.start) / length));
      for (let number = first; number <= last; number += 1)
        for (const item of this.repeat(block, number).items) this.paint(group, item, y, row);
      return;
    }
    this.flush(group, y);
    this.shown[row].push(block);
    this.bar(group, block, block, y, block.pieces.map((piece) => [piece.kind, piece.seconds / block.seconds]));
    this.write(group, `× ${whole(block.repeats)}`, x0, width, y + 15, { text: "var(--ink)", halo: "var(--paper)" });
  }

  // A bar; with `shares`, for what alternates too fast to be seen, a band for each kind as high as its share.
  bar(group, item, stands, y, shares) {
    const x0 = Math.max(this.x(item.start), this.left - 2), x1 = Math.min(this.x(item.end), this.width + 2);
    let top = y;
    for (const [kind, share] of shares ?? [[item.kind, 1]]) {
      const rectangle = svg("rect", { x: x0.toFixed(2), width: Math.max(x1 - x0, 0.5).toFixed(2), y: top.toFixed(2),
        height: (BAR * share).toFixed(2), fill: this.look({ kind }).fill, class: x1 - x0 > 4 ? "edged" : null });
      rectangle.item = stands;
      group.append(rectangle);
      top += BAR * share;
    }
  }

  shares(item) {
    const total = item.parts[0] + item.parts[1];
    return [["recompute", item.parts[0] / total], ["backward", item.parts[1] / total]];
  }

  paintOp(group, item, y, row) {
    const x0 = this.x(item.start), width = this.x(item.end) - x0;
    if (x0 > this.width || x0 + width < this.left || width < 0.3) return;
    const look = LOOKS.families[this.ops.family(item.op)] ?? LOOKS.other;
    const rectangle = svg("rect", { x: x0.toFixed(2), width: width.toFixed(2), y, height: OPS - 5, fill: look.fill,
      class: width > 4 ? "edged" : null });
    rectangle.item = item;
    group.append(rectangle);
    if (width > 3) this.shown[row].push(item);
    if (width > 50) this.write(group, this.ops.name(item.op), x0, width, y + 11, look, "start");
  }

  // What is narrower than a pixel is gathered, and drawn as the kind that takes most of it.
  gather(group, item, x, width, y) {
    const place = Math.floor(x);
    if (this.bin && this.bin.place !== place) this.flush(group, y);
    this.bin ??= { place, kinds: new Map(), item };
    this.bin.kinds.set(item.kind, (this.bin.kinds.get(item.kind) ?? 0) + width);
  }

  flush(group, y) {
    if (!this.bin) return;
    const [kind, width] = [...this.bin.kinds].sort((a, b) => b[1] - a[1])[0];
    const fill = kind === "block" ? LOOKS.other.fill : this.look({ kind }).fill;
    const rectangle = svg("rect", { x: this.bin.place, y, width: Math.max(0.4, Math.min(1, width)), height: BAR, fill });
    rectangle.item = this.bin.item;
    group.append(rectangle);
    this.bin = null;
  }

  look(item) { return LOOKS.spans[item.kind] ?? LOOKS.other; }
  letter(item) {
    if (item.kind === "call" || item.kind === "load") return duration(item.seconds);
    const letter = item.parts ? "R+B" : LETTERS[item.kind];
    return letter && item.microBatch !== null ? `${letter}${item.microBatch + 1}` : item.kind === "wait" ? "" : item.kind;
  }
  write(group, words, x, width, y, look, anchor = "middle") {
    const from = Math.max(x, this.left), to = Math.min(x + width, this.width);
    const room = Math.floor((to - from - 6) / ROOM);
    const shown = words.length <= room ? words : anchor === "start" && room > 4 ? `${words.slice(0, room - 1)}…` : "";
    if (!shown) return;
    group.append(svg("text", { x: anchor === "start" ? from + 3 : (from + to) / 2, y, class: `inside ${anchor}`,
      style: `fill: ${look.text}; stroke: ${look.halo ?? look.face}` }, shown));
  }
  outline() {
    const item = this.item;
    const row = this.rows[this.row ?? -1];
    if (!row || item === this.call) return svg("g");
    const x0 = Math.max(this.x(item.start), this.left), x1 = Math.min(this.x(item.end), this.width);
    const isOp = item.kind === "op";
    return x1 < this.left || x0 > this.width ? svg("g") : svg("rect", { x: x0 - 1, width: Math.max(x1 - x0, 1) + 2,
      y: row.y + (isOp ? BAR + 2 : -1), height: (isOp ? OPS - 5 : BAR) + 2, class: "selected" });
  }

  // ---------------------------------------------------------------------------------------------- choosing
  choose(item) {
    this.item = item;
    const top = (each) => (each.parent && each.parent !== this.call ? top(each.parent) : each);
    const row = this.rows.findIndex((each) => each.items.includes(top(item)));
    if (row >= 0) this.row = row;
    const chain = [];
    for (let each = item; each; each = each.parent) if (!each.isRun || each === item) chain.unshift(each);
    this.path.replaceChildren(html("ol", {}, chain.map((each) => html("li", {},
      html("button", { type: "button", click: () => this.zoomTo(each) }, this.title(each))))));
    describe(this.chosen, this.facts(item));
    if (this.width) this.draw();
  }

  title(item) {
    if (item === this.call) return "one call";
    if (item.kind === "block") return `${whole(item.repeats)} alike`;
    if (item.kind === "cycle") return item.label;
    if (item.kind === "op") return this.ops.name(item.op);
    const what = item.parts ? "recomputation and backward" : item.kind;
    return item.microBatch === null || item.microBatch === undefined ? what : `${what}, micro-batch ${item.microBatch + 1}`;
  }

  facts(item) {
    const row = item === this.call ? [] : [["where", this.rows[this.row ?? 0].name]];
    const facts = [["what", this.title(item)], ...row, ["starts at", duration(item.start)], ["takes", duration(item.seconds)],
      ["of the call", percent(item.seconds / this.call.seconds)]];
    if (item.stage !== null && item.stage !== undefined) facts.push(["stage", String(item.stage)]);
    if (item.kind === "block") {
      facts.push(["each takes", duration(item.seconds / item.repeats)]);
      for (const piece of item.pieces) facts.push([`of it ${piece.kind}`, percent(piece.seconds / item.seconds)]);
    }
    if (item.parts) facts.push(["of it recomputation", duration(item.parts[0])]);
    return item.kind === "op" ? [...facts, ["pass", item.phase], ...this.ops.facts(item.op)] : facts;
  }

  zoomTo(item) {
    if (!item) return;
    const margin = item === this.call ? 0 : 0.04 * item.seconds;
    this.choose(item);
    this.range.set(item === this.call ? this.range.first : item.start - margin,
      item === this.call ? this.range.last : item.end + margin);
  }

  next(by) {
    const shown = this.shown[this.row ?? 0] ?? [];
    const isOp = this.item.kind === "op";
    const alike = shown.filter((each) => (each.kind === "op") === isOp);
    if (!alike.length) { this.range.move(by / 2); return; }
    const now = alike.indexOf(this.item);
    const found = now < 0 ? alike[0] : alike[now + by];
    if (!found) { this.range.move(by / 2); return; }
    this.choose(found);
  }

  otherRow(by) {
    // Down from a pass to its ops, and up again; otherwise to the next row.
    const row = this.row ?? 0, shown = this.shown[row] ?? [];
    const op = by > 0 && this.item.kind !== "op" && shown.find((each) => each.kind === "op" && each.start >= this.item.start);
    if (op) { this.choose(op); return; }
    if (by < 0 && this.item.kind === "op") { this.choose(this.item.parent.parent); return; }
    const next = Math.min(Math.max(row + by, 0), this.rows.length - 1);
    const time = Math.max(this.item.start, this.range.low);
    const found = this.shown[next].find((each) => each.end > time) ?? this.shown[next][0];
    this.row = next;
    if (found) this.choose(found);
  }

  keys() {
    const kinds = new Set(this.rows.flatMap((row) => row.items.flatMap((item) =>
      item.pieces ? item.pieces.map((piece) => piece.kind) : item.parts ? ["recompute", "backward"] : [item.kind])));
    const families = new Set(this.ops.families());
    const entries = Object.entries(LOOKS.spans).filter(([kind]) => kinds.has(kind));
    const others = [...kinds].filter((kind) => !(kind in LOOKS.spans)).map((kind) => [kind, LOOKS.other]);
    const known = Object.entries(LOOKS.families).filter(([family]) => families.has(family));
    const rest = [...families].some((family) => !(family in LOOKS.families)) ? [["other ops", LOOKS.other]] : [];
    return html("div", { class: "keys" }, legend([...entries, ...others]),
      this.order.size ? html("details", {}, html("summary", {}, "Colours of ops"), legend([...known, ...rest])) : null);
  }
}
