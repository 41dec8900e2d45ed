/* What is wider than its place scrolls by itself, and can be reached from the keyboard while it does. */
(function () {
  "use strict";

  var WIDE = "pre, .table-wrapper, .output, .explorer-below, div.math";

  function mark(element) {
    if (element.scrollWidth > element.clientWidth + 1) {
      element.tabIndex = 0;
    } else {
      element.removeAttribute("tabindex");
    }
  }

  function mark_all() { document.querySelectorAll(WIDE).forEach(mark); }

  document.addEventListener("DOMContentLoaded", mark_all);
  window.addEventListener("load", mark_all);
  window.addEventListener("resize", mark_all);
  document.addEventListener("toggle", mark_all, true);  /* what was folded away had no width */
  document.addEventListener("input", mark_all);  /* an explorer shows another table */
})();
