/* Explorers without a kernel: every view was computed when the site was built, and a control chooses among them. */
(function () {
  "use strict";

  function place(control) {
    return control.type === "checkbox" ? Number(control.checked) : Number(control.value);
  }

  function show(explorer, states) {
    var controls = Array.from(explorer.querySelectorAll("form input, form select"));
    var state = states[controls.map(place).join("-")];
    var figure = explorer.querySelector("figure");
    figure.hidden = !state.picture;
    if (state.picture) {
      var image = figure.querySelector("img");
      image.src = explorer.dataset.pictures + state.picture;
      image.alt = state.description;
      image.width = state.width;
      figure.querySelector("figcaption").textContent = state.takeaway;
    }
    explorer.querySelector(".explorer-below").innerHTML = state.below;
  }

  function name_value(slider) {
    var words = JSON.parse(slider.dataset.words)[Number(slider.value)];
    slider.setAttribute("aria-valuetext", words);
    slider.parentNode.querySelector("output").textContent = words;
  }

  function start(explorer) {
    var states = (window.courseExplorers || {})[explorer.dataset.explorer];
    if (!states) { return; }
    var form = explorer.querySelector("form");
    form.reset();
    form.addEventListener("submit", function (event) { event.preventDefault(); });
    form.addEventListener("input", function (event) {
      if (event.target.type === "range") { name_value(event.target); }
      show(explorer, states);
    });
  }

  document.addEventListener("DOMContentLoaded", function () {
    document.querySelectorAll(".explorer").forEach(start);
  });
})();
