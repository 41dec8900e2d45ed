// Puts the parts of a report's page into their places.
const DATA = JSON.parse(document.getElementById("data").textContent);
const TEXT = (place) => DATA.texts[place];
const place = (name) => document.getElementById(name);
const unrolled = (runs) => {
  const values = [];
  for (let n = 0; n < runs.length; n += 2) for (let count = runs[n]; count > 0; count -= 1) values.push(runs[n + 1]);
  return values;
};
const choice = (label, names, changed) => html("label", { class: "choice" }, `${label} `,
  html("select", { change: (event) => changed(Number(event.target.value)) }, names.map((name, n) => html("option", { value: n }, name))));

// Every tile of one IPU, or of all, by group of categories; where tiles are not known by group, in one colour.
const tileChart = (host, ipus) => {
  const lengths = ipus.map((each) => unrolled(each.tiles).length);
  const starts = lengths.map((_, n) => lengths.slice(0, n).reduce((sum, each) => sum + each, 0));
  const names = Object.keys(LOOKS.memory).filter((name) => ipus.some((each) => name in each.groups));
  const known = ipus.every((each) => Object.keys(each.groups).length);
  const most = ipus.flatMap((each) => unrolled(each.tiles));
  const series = known ? names.map((name) => ({ name, look: LOOKS.memory[name], values: ipus.flatMap((each, n) =>
    each.groups[name] ? unrolled(each.groups[name]) : Array(lengths[n]).fill(0)) }))
    : [{ name: "all data", look: LOOKS.memory.parameters, values: most }];
  const ipuOf = (tile) => starts.findLastIndex((start) => start <= tile);
  const chart = new Stack(host, { label: host.dataset.label, series, limit: DATA.tile_bytes,
    limitName: `a tile holds ${whole(DATA.tile_bytes)} bytes`, xTitle: "tile", start: most.indexOf(Math.max(...most)),
    marks: ipus.map((each, n) => ({ at: starts[n], to: starts[n] + lengths[n], name: `IPU ${each.ipu}`, restart: true })),
    facts: (tile) => [["tile", `${whole(tile - starts[ipuOf(tile)])} of IPU ${ipus[ipuOf(tile)].ipu}`],
      ["at its fullest", `${whole(most[tile])} bytes (${percent(most[tile] / DATA.tile_bytes)})`],
      ...series.filter((each) => each.values[tile]).map((each) => [each.name, `${whole(each.values[tile])} bytes`])] });
  return chart;
};

const grouped = (rows, key) => rows.reduce((groups, row) => groups.set(key(row), [...(groups.get(key(row)) ?? []), row]), new Map());

const livenessChart = (host, memory) => {
  const { steps } = memory, count = steps.bytes.length;
  if (!count) { host.replaceChildren(html("p", {}, "Everything on this IPU is always live.")); return; }
  const constant = Array(count).fill(memory.always_live);
  const phases = [];
  steps.phase.forEach((phase, n) => {
    const name = TEXT(phase) === "recompute" ? "backward" : TEXT(phase);
    if (phases.at(-1)?.name !== name) phases.push({ at: n, to: n + 1, name });
    else phases.at(-1).to = n + 1;
  });
  for (const each of phases) if (each.name === "backward" && steps.phase.slice(each.at, each.to).some((phase) => TEXT(phase) === "recompute")) each.name = "recomputation and backward";
  new Stack(host, { label: host.dataset.label, xTitle: "ops of one micro-batch and one update, in the order in which they run",
    series: [{ name: "always live", look: LOOKS.memory.code, values: constant },
      { name: "results, gradients and stashes", look: LOOKS.memory.activations, values: steps.bytes.map((bytes, n) => bytes - steps.temporary[n]) },
      { name: "temporary data of the op", look: LOOKS.memory["temporary data"], values: steps.temporary }],
    limit: DATA.tile_bytes, limitName: `a tile holds ${whole(DATA.tile_bytes)} bytes`, marks: phases, start: memory.peak,
    facts: (n, total) => [["op", TEXT(steps.name[n])], ["pass", TEXT(steps.phase[n])],
      ["the fullest tile holds", `${whole(total)} bytes (${percent(total / DATA.tile_bytes)})`],
      ["always live", `${whole(memory.always_live)} bytes`], ["of it temporary", `${whole(steps.temporary[n])} bytes`],
      ...(n === memory.peak ? [["", "This is the peak."]] : [])] });
};

const tensorTable = (host, memory) => {
  const { tensors } = memory;
  if (!tensors.name.length) { host.replaceChildren(); return; }
  const step = (n) => TEXT(memory.steps.name[n] ?? memory.steps.name[0] ?? 0);
  const every = tensors.name.map((name, n) => ({ name: TEXT(name), alike: TEXT(tensors.alike[n]), category: TEXT(tensors.category[n]), type: TEXT(tensors.type[n]),
    bytes: tensors.bytes[n], total: tensors.total[n], copies: tensors.copies[n],
    when: tensors.always[n] ? "always" : `from ${step(tensors.first[n])} to ${step(tensors.last[n])}`,
    text: `${TEXT(name)} ${TEXT(tensors.category[n])} ${TEXT(tensors.type[n])}`.toLowerCase() }));
  // Tensors of equal layers are one row that opens.
  const rows = [...grouped(every, (row) => `${row.alike} ${row.category} ${row.type}`).values()].map((alike) => {
    if (alike.length === 1) return alike[0];
    const [first] = alike, sum = (key) => alike.reduce((total, row) => total + row[key], 0);
    const isSame = (key) => alike.every((row) => row[key] === first[key]);
    return { ...first, name: isSame("name") ? first.name : first.alike, times: alike.length, children: alike, bytes: sum("bytes"), total: sum("total"),
      copies: sum("copies"), when: isSame("when") ? first.when : "at different times" };
  });
  new DataTable(host, { caption: `Tensors in memory at the peak of IPU ${memory.ipu}, modelled`, filter: "Find tensors", rows, many: 20,
    sorted: { n: 1, sign: -1 }, columns: [
      { title: "tensor", cell: (row) => html("span", {}, row.name, row.times ? html("span", { class: "times" }, ` × ${row.times}`) : null, html("span", { class: "below" }, row.type)), value: (row) => row.name },
      { title: "bytes of the fullest tile", number: true, cell: (row) => whole(row.bytes), value: (row) => row.bytes },
      { title: "of a tile", number: true, cell: (row) => percent(row.bytes / DATA.tile_bytes), value: (row) => row.bytes },
      { title: "all tiles", number: true, cell: (row) => size(row.total), value: (row) => row.total },
      { title: "category", cell: (row) => row.category + (row.copies > (row.times ?? 1) ? `, ${row.copies} copies` : ""), value: (row) => row.category },
      { title: "in memory", cell: (row) => row.when },
    ] });
};

const showMemory = () => {
  const fullest = DATA.memory.map((each) => Math.max(0, ...unrolled(each.tiles)));
  const worst = fullest.indexOf(Math.max(...fullest));
  const order = [worst, ...DATA.memory.keys()].filter((n, index, every) => every.indexOf(n) === index);
  const names = order.map((n) => `IPU ${DATA.memory[n].ipu}${n === worst && order.length > 1 ? " (fullest)" : ""}`);
  const several = DATA.memory.length > 1;
  const tiles = (n) => tileChart(place("tiles"), several && n === 0 ? DATA.memory : [DATA.memory[order[several ? n - 1 : n]]]);
  const over = (n) => { livenessChart(place("liveness"), DATA.memory[order[n]]); tensorTable(place("tensors"), DATA.memory[order[n]]); };
  if (several) {
    place("tiles-choice").append(choice("Show", ["all IPUs", ...names], tiles));
    place("liveness-choice").append(choice("Show", names, over));
  }
  tiles(0);
  over(0);
};

const showModules = (ops) => {
  const tree = moduleRow(ops, DATA.modules), total = ops.total || 1, columns = opColumns(total, DATA.clock_hz);
  const sorted = { n: 1, sign: -1 };
  const asTree = () => {
    const table = new DataTable(place("modules"), { caption: "Modules and their ops: cycles of one call on all IPUs, modelled", columns, rows: tree.children, filter: "Find modules and ops", sorted });
    // What holds most of the cycles is open from the start.
    for (let rows = tree.children, most; (most = rows.find((row) => row.children && all(row) > 0.6 * total)); rows = most.children) table.open.add(most);
    table.draw();
  };
  const asList = () => {
    const rows = ops.all.map((op) => onlyOp(ops, op));
    new DataTable(place("modules"), { caption: "All ops: cycles of one call, modelled", columns, rows, filter: "Find ops", sorted });
  };
  place("modules-choice").append(choice("Show", ["modules that open and close", "all ops in one list"], (n) => [asTree, asList][n]()));
  asTree();
};

const start = () => {
  const ops = new Ops(DATA);
  if (DATA.rows.length) new Timeline(place("timeline-picture"), DATA, ops);
  showMemory();
  showTried(DATA.fit);
  if (ops.all.length) { new Roofline(place("roofline-picture"), DATA, ops); showModules(ops); }
};
start();
// Paper cannot be unfolded.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));

