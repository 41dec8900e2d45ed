// The ops by number, and the rows of the table of modules and ops.
class Ops {
  constructor(data) {
    this.data = data;
    this.columns = data.ops;
    this.all = data.ops.name.map((_, op) => op);
    this.total = this.all.reduce((sum, op) => sum + this.perCall(op), 0);
  }
  name(op) { return TEXT(this.columns.name[op]); }
  scope(op) { return TEXT(this.columns.scope[op]); }
  phase(op) { return TEXT(this.columns.phase[op]); }
  family(op) { return TEXT(this.columns.family[op]); }
  families() { return this.all.map((op) => this.family(op)); }
  flops(op) { return this.columns.flops[op]; }
  bytes(op) { return this.columns.bytes[op]; }
  peak(op) { return this.columns.peak[op]; }
  perRun(op) { return this.columns.compute[op] + this.columns.exchange[op] + this.columns.sync[op]; }
  perCall(op) { return this.perRun(op) * this.columns.runs[op]; }
  facts(op) {
    const column = (name) => this.columns[name][op];
    const facts = [["module", this.scope(op) || "(the model itself)"], ["kind", `${this.family(op)}, ${TEXT(column("target"))}`]];
    const told = [["reads", "operands"], ["gives", "results"], ["plan", "plan"], ["in the program", "line"]];
    for (const [name, key] of told) if (TEXT(column(key))) facts.push([name, TEXT(column(key))]);
    const parts = [["compute", "compute"], ["exchange", "exchange"], ["sync", "sync"]].filter(([, key]) => column(key));
    facts.push(["cycles once", `${whole(this.perRun(op))}: ${parts.map(([name, key]) => `${name} ${whole(column(key))}`).join(", ")}`]);
    facts.push(["runs in a call", whole(column("runs")) + (column("again") ? `, ${whole(column("again"))} of them recomputed` : "")]);
    if (column("flops")) facts.push(["FLOPs once", metric(column("flops"), "FLOP")]);
    if (column("peak")) facts.push(["of the matrix units' peak", percent(column("flops") / (this.perRun(op) * column("peak")))]);
    if (column("temporary")) facts.push(["temporary memory", `${size(column("temporary"))} of a tile`]);
    return facts;
  }
}

const PHASES = ["forward", "recompute", "backward", "update"];

// A row for `count` ops alike, of which `op` is the first: cycles of a call by pass, and FLOPs, are those of all of them.
const opRow = (ops, op, count, cycles, flops) => {
  const told = (key) => TEXT(ops.columns[key][op]);
  const shapes = [told("operands"), told("results")].filter(Boolean).join(" → ");
  const sum = cycles.reduce((total, each) => total + each, 0);
  return { name: ops.name(op).split(": ").at(-1) || ops.name(op), cycles, flops, possible: sum * ops.peak(op), shapes, ops: count,
    plan: told("plan"), phase: told("phase"), family: told("family") + (ops.columns.fallback[op] ? " (no formula)" : ""),
    temporary: ops.columns.temporary[op], ipus: [ops.columns.ipu[op]],
    text: [ops.name(op), told("scope"), told("target"), told("family"), told("phase"), shapes, told("plan")].join(" ").toLowerCase() };
};
const onlyOp = (ops, op) => {
  const [runs, again, once] = [ops.columns.runs[op], ops.columns.again[op], ops.perRun(op)];
  const cycles = PHASES.map((phase) => (phase === ops.phase(op) ? once * (runs - again) : 0));
  cycles[1] += once * again;
  return { ...opRow(ops, op, 1, cycles, ops.flops(op) * runs), name: ops.name(op) };
};

// A row that opens: its numbers are the sums of those of the rows in it.
const summed = (about, children) => {
  const sum = (key) => children.reduce((total, each) => total + each[key], 0);
  return { ...about, children, isModule: true, flops: sum("flops"), possible: sum("possible"), ops: sum("ops"),
    cycles: PHASES.map((_, n) => children.reduce((total, each) => total + each.cycles[n], 0)),
    temporary: Math.max(0, ...children.map((each) => each.temporary)) };
};
const moduleRow = (ops, module, path = "") => {
  const children = module.children.map((child) => moduleRow(ops, child, path ? `${path}.${child.name}` : child.name));
  const own = module.ops.map(([op, count, forward, recompute, backward, update, flops]) =>
    opRow(ops, op, count, [forward, recompute, backward, update], flops));
  const { ipus } = module;
  // The ops that a module runs itself are a row of their own beside its submodules.
  const apart = children.length && own.length > 2
    ? [summed({ name: `ops of ${path || "the model"} itself`, kind: "", times: 1, text: "", ipus }, own)] : own;
  return summed({ name: module.name, kind: module.layer, times: module.count, text: path.toLowerCase(), ipus }, [...children, ...apart]);
};

const all = (row) => row.cycles.reduce((sum, each) => sum + each, 0);
const bar = (row, total) => html("span", { class: "bar", role: "img", "aria-label": PHASES.map((phase, n) =>
  `${phase} ${percent(row.cycles[n] / total)}`).join(", ") }, svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none" },
  row.cycles.reduce(([x, found], cycles, n) => [x + 100 * cycles / total, [...found,
    cycles ? svg("rect", { x, width: 100 * cycles / total, height: 10, fill: LOOKS.spans[PHASES[n]].fill }) : null]], [0, []])[1]));

const opColumns = (total, clock) => [
  { title: "module or op", cell: (row) => html("span", {}, row.isModule ? html("strong", {}, row.name) : row.name,
    row.kind ? html("span", { class: "muted" }, ` ${row.kind}`) : null, row.times > 1 ? html("span", { class: "times" }, ` × ${row.times}`) : null,
    row.shapes || row.plan ? html("span", { class: "below" }, [row.shapes, row.plan].filter(Boolean).join("; ")) : null), value: (row) => row.name },
  { title: "share", number: true, cell: (row) => html("span", {}, bar(row, total), percent(all(row) / total)), value: all },
  { title: "cycles of a call", number: true, cell: (row) => whole(all(row)), value: all },
  { title: "IPU time", number: true, cell: (row) => duration(all(row) / clock), value: all },
  { title: "FLOPs", number: true, cell: (row) => (row.flops ? metric(row.flops, "") : ""), value: (row) => row.flops },
  { title: "of the peak", number: true, cell: (row) => (row.possible ? percent(row.flops / row.possible) : ""), value: (row) => (row.possible ? row.flops / row.possible : -1) },
  { title: "temporary, a tile", number: true, cell: (row) => (row.temporary ? size(row.temporary) : ""), value: (row) => row.temporary },
  { title: "phase", cell: (row) => row.phase ?? "" },
  { title: "kind", cell: (row) => row.family ?? "" },
  { title: "IPU", cell: (row) => (row.ipus.length > 2 ? `${row.ipus[0]} to ${row.ipus.at(-1)}` : row.ipus.join(", ")) },
  { title: "ops", number: true, cell: (row) => whole(row.ops), value: (row) => row.ops },
];
