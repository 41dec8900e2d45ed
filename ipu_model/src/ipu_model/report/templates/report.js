"use strict";
// Tables of class "sortable": a click on a heading sorts by that column, a second one the other way round.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const value = (row) => row.cells[column].dataset.value;
      const isNumber = [...body.rows].some((row) => value(row) !== undefined);
      const before = heading.getAttribute("aria-sort");
      const order = before === "descending" || (before === null && !isNumber) ? "ascending" : "descending";
      const sign = order === "ascending" ? 1 : -1;
      const rows = [...body.rows].sort((a, b) => sign * (isNumber
        ? Number(value(a)) - Number(value(b))
        : a.cells[column].textContent.localeCompare(b.cells[column].textContent, "en", { numeric: true })));
      headings.forEach((each) => each.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", order);
      body.append(...rows);
    });
  });
}
