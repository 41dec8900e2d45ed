// The ops by number, and the tree of modules that they belong to.
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
  once(op) { return this.perRun(op); }
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

// A row of the tree for one op, or for ops of alike modules that stand in the same place.
const opRow = (ops, all) => {
  const cycles = [0, 0, 0, 0];
  let flops = 0, possible = 0;
  for (const op of all) {
    const [runs, again, once] = [ops.columns.runs[op], ops.columns.again[op], ops.perRun(op)];
    const phase = Math.max(0, PHASES.indexOf(ops.phase(op)));
    cycles[phase] += once * (runs - again);
    cycles[1] += once * again;
    flops += ops.flops(op) * runs;
    possible += once * runs * ops.peak(op);
  }
  const first = all[0];
  const unlike = (key) => new Set(all.map((op) => ops.columns[key][op])).size;
  const plan = unlike("plan") > 1 ? `${unlike("plan")} plans` : TEXT(ops.columns.plan[first]);
  const shapes = [TEXT(ops.columns.operands[first]), TEXT(ops.columns.results[first])].filter(Boolean).join(" → ");
  const name = ops.name(first).split(": ").at(-1) || ops.name(first);
  return { name, all, cycles, flops, possible, shapes, plan, phase: ops.phase(first), ops: all.length,
    family: ops.family(first) + (ops.columns.fallback[first] ? " (no formula)" : ""),
    temporary: Math.max(...all.map((op) => ops.columns.temporary[op])), ipus: new Set(all.map((op) => ops.columns.ipu[op])),
    text: `${all.length > 4 ? ops.scope(first) : all.map((op) => ops.scope(op)).join(" ")} ${ops.name(first)} ${TEXT(ops.columns.target[first])} ${ops.family(first)} ${ops.phase(first)} ${shapes} ${plan}`.toLowerCase() };
};

// A row that opens: its numbers are the sums of those of the rows in it.
const summed = (about, children) => {
  const sum = (key) => children.reduce((total, each) => total + each[key], 0);
  return { ...about, children, isModule: true, flops: sum("flops"), possible: sum("possible"), ops: sum("ops"),
    cycles: PHASES.map((_, n) => children.reduce((total, each) => total + each.cycles[n], 0)),
    temporary: Math.max(0, ...children.map((each) => each.temporary)), ipus: new Set(children.flatMap((each) => [...each.ipus])) };
};

// Modules with equal contents beside each other (the layers of a transformer) become one row.
const moduleTree = (ops, layers) => {
  const root = { name: "", path: "", modules: new Map(), ops: [] };
  for (const op of ops.all) {
    let node = root;
    for (const part of ops.scope(op).split(".").filter(Boolean)) {
      const path = node.path ? `${node.path}.${part}` : part;
      if (!node.modules.has(part)) node.modules.set(part, { name: part, path, modules: new Map(), ops: [] });
      node = node.modules.get(part);
    }
    node.ops.push([op]);
  }
  const signature = (node) => node.signature ??= JSON.stringify([layers[node.path] ?? "",
    node.ops.map(([op]) => [ops.columns.target[op], ops.columns.part[op], ops.columns.phase[op], ops.columns.results[op]]),
    [...node.modules].map(([name, each]) => [name, signature(each)])]);
  const together = (nodes) => {
    const found = new Map();
    for (const node of nodes) {
      const key = /\d/.test(node.name) ? signature(node) : node.path;
      if (!found.has(key)) found.set(key, []);
      found.get(key).push(node);
    }
    return [...found.values()];
  };
  const merged = (nodes) => ({ nodes, ops: nodes[0].ops.map((_, n) => nodes.flatMap((node) => node.ops[n])),
    modules: together(nodes[0].modules.values()).map((alike) => merged(nodes.flatMap((node) => alike.map((each) => node.modules.get(each.name))))) });
  const row = (node) => {
    const { nodes } = node;
    const names = nodes.map((each) => each.name);
    const first = nodes[0];
    const own = node.ops.map((all) => opRow(ops, all));
    const modules = node.modules.map(row);
    // The ops that a module runs itself are a row of their own beside its submodules.
    const apart = modules.length && own.length > 2 ? [summed({ name: `ops of ${first.path || "the model"} itself`, kind: "", times: 1, text: "" }, own)] : own;
    const inARow = names.every((each, n) => !n || Number(each) === Number(names[n - 1]) + 1);
    const several = inARow ? `${names[0]} … ${names.at(-1)}` : `${names.slice(0, 3).join(", ")}, …`;
    return summed({ name: (names.length > 2 ? several : names.join(", ")) || "the model",
      kind: layers[first.path] ?? "", times: names.length, text: nodes.map((each) => each.path).join(" ").toLowerCase() },
    [...modules, ...apart]);
  };
  return row(merged([root]));
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
  { title: "IPU", cell: (row) => { const ipus = [...row.ipus].sort((a, b) => a - b); return ipus.length > 2 ? `${ipus[0]} to ${ipus.at(-1)}` : ipus.join(", "); } },
  { title: "ops", number: true, cell: (row) => whole(row.ops), value: (row) => row.ops },
];
