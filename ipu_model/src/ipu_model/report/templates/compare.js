// The tables of a comparison: what moved, with bars to the left for less and to the right for more, on one axis.
const DATA = JSON.parse(document.getElementById("data").textContent);
const [BEFORE, AFTER] = DATA.names;

const changeBar = (row, most) => {
  const length = most ? 50 * Math.abs(row.change) / most : 0;
  return svg("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "change", "aria-hidden": "true" },
    svg("rect", { x: row.change < 0 ? 50 - length : 50, width: length, height: 10,
      fill: row.change < 0 ? LOOKS.spans.forward.fill : LOOKS.spans.backward.fill }),
    svg("path", { d: "M50 0V10", class: "axis" }));
};
const relative = (row) => {
  if (!row.change) return "same";
  if (!row.before) return "new";
  if (!row.after) return "gone";
  const factor = row.after / row.before;
  if (factor >= 10) return `× ${short(factor)}`;
  if (factor <= 0.1) return `× 1/${short(1 / factor)}`;
  return `${factor > 1 ? "+" : "−"}${(100 * Math.abs(factor - 1)).toFixed(1)} %`;
};
const showMoved = (name, caption, headings, shown, filter) => {
  const rows = DATA[name].map(([name, what, group, before, after]) => ({ name, what, group, before, after, change: after - before,
    text: `${name} ${what} ${group}`.toLowerCase() })).filter((row) => row.before || row.after);
  const host = document.getElementById(`moved-${name}`);
  if (!rows.length) { host.replaceChildren(html("p", {}, "Neither profile has any.")); return; }
  const most = Math.max(...rows.map((row) => Math.abs(row.change)));
  const signed = (value) => (value ? `${value > 0 ? "+" : "−"}${shown(Math.abs(value))}` : "same");
  const words = headings.map((title, n) => ({ title, cell: (row) => [row.name, row.what, row.group][n] }));
  new DataTable(host, { caption, rows, filter, many: 25, columns: [...words.filter((_, n) => headings[n]),
    { title: BEFORE, number: true, cell: (row) => shown(row.before), value: (row) => row.before },
    { title: AFTER, number: true, cell: (row) => shown(row.after), value: (row) => row.after },
    { title: "less | more", number: true, cell: (row) => changeBar(row, most), value: (row) => row.change },
    { title: "change", number: true, cell: (row) => signed(row.change), value: (row) => Math.abs(row.change) },
    { title: "relative", number: true, cell: relative, value: (row) => (row.before ? row.after / row.before : Infinity) }] });
};

const bytes = (value) => whole(value);
showMoved("parts", "IPU time of a sample by what it goes into, modelled", ["part"], duration);
showMoved("modules", "IPU time of a sample by module, modelled", ["module"], duration, "Find modules");
showMoved("ops", "IPU time of a sample by op, modelled", ["module", "op", "pass"], duration, "Find ops");
showMoved("categories", "Bytes of the fullest tile by category, modelled", ["category"], bytes);
showMoved("tensors", "Bytes of tensors on the fullest tile, modelled", ["tensor", "", "category"], bytes, "Find tensors");
