// What a search tried: memory against throughput as a picture, and as a table.
const SETTINGS = [["IPUs", "ipus"], ["replicas", "replicas"], ["micro-batch", "micro_batch"], ["split", "split"], ["precision", "precision"],
  ["recomputation", "recomputation"], ["optimiser state", "state"], ["memory proportion", "proportion"]];
const WIDEST = 3;

class Frontier {
  // `tried` are the settings that were modelled, the leanest first. What needs more than WIDEST is drawn at the right edge.
  constructor(host, tried) {
    this.tried = tried;
    this.most = 1.08 * Math.max(...tried.map((each) => each.speed)) || 1;
    this.widest = Math.max(1.1, Math.min(WIDEST, 1.05 * Math.max(...tried.map((each) => each.share))));
    this.chosen = details();
    this.picture = svg("svg", { class: "picture still", role: "application", tabindex: 0, "aria-label": host.dataset.label });
    host.replaceChildren(this.picture, this.chosen);
    this.picture.addEventListener("click", (event) => event.target.setting && this.choose(event.target.setting));
    const moves = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 };
    this.picture.addEventListener("keydown", (event) => {
      const next = this.tried[this.tried.indexOf(this.setting) + (moves[event.key] ?? 0)];
      if (!moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      if (next) this.choose(next);
    });
    this.choose(tried.find((each) => each.marks.includes("fastest")) ?? tried.find((each) => each.marks) ?? tried[0]);
    drawnAtItsWidth(host, (width) => { this.width = width; this.draw(); });
  }

  choose(setting) {
    this.setting = setting;
    describe(this.chosen, [["verdict", setting.verdict], ["of a tile", percent(setting.share)], ["samples/s", short(setting.speed)],
      ...SETTINGS.map(([title, key]) => [title, String(setting[key])]), ...(setting.marks ? [["this is", setting.marks]] : [])]);
    if (this.width) this.draw();
  }

  x(share) { return 52 + (this.width - 66) * Math.min(share, this.widest) / this.widest; }
  y(speed) { return 20 + 280 * (1 - speed / this.most); }

  draw() {
    const { width } = this, right = width - 14;
    const across = ticks(0, this.widest * 100, width / 110).found.map((value) => [svg("path", { class: "grid", d: `M${this.x(value / 100)} 20V304` }),
      svg("text", { class: this.x(value / 100) > right - 16 ? "tick end" : "tick", x: Math.min(this.x(value / 100), width - 2), y: 318 }, `${value} %`)]);
    const up = ticks(0, this.most, 5).found.map((value) => [svg("path", { class: "grid", d: `M52 ${this.y(value)}H${right}` }),
      svg("text", { class: "tick end", x: 46, y: this.y(value) + 4 }, Number.isInteger(value) ? whole(value) : short(value))]);
    const front = this.tried.filter((each) => each.frontier);
    const path = front.map((each, n) => `${n ? `H${this.x(each.share)}V` : `M${this.x(each.share)} `}${this.y(each.speed)}`).join("");
    this.picture.setAttribute("viewBox", `0 0 ${width} 340`);
    this.picture.replaceChildren(...across.flat(), ...up.flat(), svg("path", { class: "slope", d: `${path}H${right}` }),
      svg("path", { class: "limit", d: `M${this.x(1)} 20V304` }),
      ...[...this.tried].sort((a, b) => a.marks.length - b.marks.length).map((each) => this.mark(each)), ...this.labels(),
      svg("text", { class: "tick start", x: 4, y: 11 }, "samples/s"),
      svg("text", { class: "tick end", x: right, y: 335 }, "memory that the fullest tile needs, of what it has"));
  }

  mark(setting) {
    const x = this.x(setting.share), y = this.y(setting.speed), r = setting.marks ? 7 : 5;
    const shapes = { good: () => svg("circle", { cx: x, cy: y, r, fill: "var(--good)" }),
      close: () => svg("rect", { x: x - r, y: y - r, width: 2 * r, height: 2 * r, fill: "var(--close)" }),
      bad: () => svg("path", { d: `M${x - r} ${y - r}l${2 * r} ${2 * r}m0 ${-2 * r}l${-2 * r} ${2 * r}`, class: "cross" }) };
    const hit = svg("circle", { cx: x, cy: y, r: 10, class: setting === this.setting ? "hit ring" : "hit" });
    const shape = shapes[setting.tone]();
    if (setting.tone !== "bad") shape.setAttribute("class", "dot");
    shape.setting = hit.setting = setting;
    return svg("g", {}, shape, hit, svg("title", {}, `${setting.marks ? `${setting.marks}: ` : ""}${setting.verdict}, ${percent(setting.share)} of a tile, ${short(setting.speed)} samples/s`));
  }

  // Names of marks: above them where there is room, or else below; each moves on until it hides no other name.
  labels() {
    const placed = [];
    return this.tried.filter((each) => each.marks).map((each) => {
      const half = each.marks.length * 3.4, x = Math.min(Math.max(this.x(each.share), 54 + half), this.width - 16 - half);
      const at = this.y(each.speed);
      const rows = [at - 13, at + 22, at - 28, at + 37, at - 43, at + 52];
      const isFree = (y) => y > 12 && y < 300 && placed.every((other) => Math.abs(other.x - x) > half + other.half + 4 || Math.abs(other.y - y) > 13);
      const y = rows.find(isFree) ?? rows[0];
      placed.push({ x, y, half });
      return svg("text", { class: "halo middle", x, y }, each.marks);
    });
  }
}

const triedTable = (host, tried) => {
  const rows = tried.map((each) => ({ ...each, name: each.verdict,
    text: [each.marks, each.verdict, ...SETTINGS.map(([, key]) => each[key])].join(" ").toLowerCase() }));
  const isNumber = (key) => typeof tried[0][key] === "number";
  new DataTable(host, { caption: "Settings that were modelled, the leanest first", rows, many: 12, filter: "Find settings", columns: [
    { title: "verdict", cell: (row) => html("span", { class: `verdict ${row.tone}` }, row.verdict, row.marks ? html("strong", {}, ` ${row.marks}`) : null), value: (row) => row.verdict },
    { title: "of a tile", number: true, cell: (row) => percent(row.share), value: (row) => row.share },
    { title: "samples/s", number: true, cell: (row) => short(row.speed), value: (row) => row.speed },
    ...SETTINGS.map(([title, key]) => ({ title, number: isNumber(key), cell: (row) => String(row[key]), value: (row) => row[key] })) ] });
};

const showTried = (tried) => {
  if (!tried.length) return;
  new Frontier(place("frontier"), tried);
  triedTable(place("tried"), tried);
};
