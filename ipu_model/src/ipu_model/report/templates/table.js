// A table that sorts, filters by text, and opens and closes rows that hold others. It draws only what is in view.
class DataTable {
  // A column is { title, cell(row), value(row)?, number? }; a row may have `children`, and `text` to be found by.
  constructor(host, { caption, columns, rows, filter, many = 100, sorted }) {
    Object.assign(this, { caption, columns, rows, many, shown: many, sorted: sorted ?? null, words: [] });
    this.open = new Set();
    this.isTree = rows.some((row) => row.children);
    this.head = html("tr", {}, columns.map((column, n) => this.heading(column, n)));
    this.body = html("tbody");
    this.count = html("p", { class: "count", role: "status" });
    this.more = html("button", { type: "button", class: "more", click: () => { this.shown += 5 * many; this.draw(); } });
    const table = html("table", { class: "data", role: this.isTree ? "treegrid" : null },
      html("caption", {}, caption), html("thead", {}, this.head), this.body);
    const search = filter ? html("label", { class: "filter" }, `${filter} `, html("input", { type: "search",
      input: (event) => this.search(event.target.value) })) : null;
    host.replaceChildren(html("div", { class: "above" }, search, this.isTree ? this.unfold() : null, this.count),
      html("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: 0 }, table), this.more);
    this.body.addEventListener("keydown", (event) => this.key(event));
    this.draw();
  }

  heading(column, n) {
    const button = html("button", { type: "button", click: () => this.sort(n) }, column.title);
    return html("th", { scope: "col", class: column.number ? "number" : null }, column.cell && !column.unsorted ? button : column.title);
  }

  unfold() {
    const every = (rows, action) => rows.forEach((row) => { if (row.children) { action(row); every(row.children, action); } });
    return html("span", { class: "toolbar", role: "group", "aria-label": `Rows of ${this.caption}` },
      html("button", { type: "button", click: () => { this.rows.forEach((row) => this.open.add(row)); this.draw(); } }, "open"),
      html("button", { type: "button", click: () => { every(this.rows, (row) => this.open.add(row)); this.draw(); } }, "open all"),
      html("button", { type: "button", click: () => { this.open.clear(); this.draw(); } }, "close all"));
  }

  search(text) {
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = this.many;
    this.draw();
  }

  sort(n) {
    const first = this.columns[n].number ? -1 : 1;
    this.sorted = this.sorted?.n === n ? { n, sign: -this.sorted.sign } : { n, sign: first };
    this.draw();
  }

  fits(row) { return this.words.every((word) => row.text.includes(word)); }
  found(row) { return row.children ? row.children.some((each) => this.found(each)) || this.fits(row) : this.fits(row); }

  // Rows in the order in which they are shown, with their depth.
  *lines(rows, depth, inside) {
    const column = this.sorted && this.columns[this.sorted.n];
    const value = (row) => (column.value ?? column.cell)(row);
    const order = column ? [...rows].sort((a, b) => this.sorted.sign * (column.number
      ? value(a) - value(b) : String(value(a)).localeCompare(String(value(b)), "en", { numeric: true }))) : rows;
    for (const row of order) {
      const fits = inside || this.fits(row);
      if (this.words.length && !fits && !this.found(row)) continue;
      yield [row, depth];
      if (row.children && (this.open.has(row) || (this.words.length && !fits))) yield* this.lines(row.children, depth + 1, fits);
    }
  }

  draw() {
    const lines = [...this.lines(this.rows, 0, false)];
    this.body.replaceChildren(...lines.slice(0, this.shown).map(([row, depth]) => this.line(row, depth)));
    this.columns.forEach((_, n) => {
      const heading = this.head.cells[n];
      if (this.sorted?.n === n) heading.setAttribute("aria-sort", this.sorted.sign > 0 ? "ascending" : "descending");
      else heading.removeAttribute("aria-sort");
    });
    const left = lines.length - this.shown;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show ${whole(Math.min(left, 5 * this.many))} more${left > 5 * this.many ? ` of ${whole(left)}` : ""}`;
    this.count.textContent = this.words.length ? `${whole(lines.length)} ${lines.length === 1 ? "row" : "rows"} found` : `${whole(lines.length)} rows`;
  }

  line(row, depth) {
    const isOpen = this.open.has(row);
    const cells = this.columns.map((column, n) => {
      const content = column.cell(row);
      if (n) return html("td", { class: column.number ? "number" : null }, content);
      const toggle = row.children ? html("button", { type: "button", class: "toggle", "aria-expanded": String(isOpen),
        "aria-label": `${isOpen ? "Close" : "Open"} ${row.name}`, click: () => this.toggle(row) }, isOpen ? "▾" : "▸") : null;
      if (!this.isTree) return html("th", { scope: "row" }, content);
      const indent = `padding-left: ${depth * 1.1 + (toggle ? 0 : 1.4)}rem`;
      return html("th", { scope: "row" }, html("div", { class: "leaf", style: indent }, toggle, content));
    });
    const line = html("tr", this.isTree ? { "aria-level": depth + 1, "aria-expanded": row.children ? String(isOpen) : null } : {}, cells);
    line.row = row;
    return line;
  }

  toggle(row, open = !this.open.has(row)) {
    if (open) this.open.add(row); else this.open.delete(row);
    this.draw();
    [...this.body.rows].find((line) => line.row === row)?.querySelector(".toggle")?.focus();
  }

  key(event) {
    const line = event.target.closest("tr");
    if (!event.target.matches(".toggle") || !line) return;
    const toggles = [...this.body.querySelectorAll(".toggle")], now = toggles.indexOf(event.target);
    const moves = { ArrowDown: () => toggles[now + 1]?.focus(), ArrowUp: () => toggles[now - 1]?.focus(),
      ArrowRight: () => this.toggle(line.row, true), ArrowLeft: () => this.toggle(line.row, false) };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  }
}
