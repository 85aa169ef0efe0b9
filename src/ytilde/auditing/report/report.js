"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Galleries: filter by text and label, sort by a figure. Without this script all cards show.
  for (const box of all("section.gallery")) {
    const cards = all(".card", box);
    const grid = box.querySelector(".cards");
    const bar = box.querySelector(".controls");
    const said = box.querySelector(".shown");
    if (!cards.length) continue;
    const [text, given, suggested, order] = ["text", "given", "suggested", "order"].map(
      (name) => bar.querySelector(`[name=${name}]`));

    const fill = (select, key) => {
      const labels = [...new Set(cards.map((card) => card.dataset[key]))].sort();
      for (const label of labels) select.add(new Option(label, label));
    };
    fill(given, "given");
    fill(suggested, "suggested");

    let limit = matchMedia("(max-width: 30rem)").matches ? 12 : 24;
    const more = document.createElement("button");
    more.type = "button";
    more.className = "more";
    more.addEventListener("click", () => { limit = Infinity; update(); });
    grid.after(more);

    const update = () => {
      const words = text.value.toLowerCase();
      const [key, sign] = order.value.split(":");
      const sorted = [...cards].sort((a, b) => sign * (a.dataset[key] - b.dataset[key]));
      let found = 0;
      for (const card of sorted) {
        const fits = (!words || card.textContent.toLowerCase().includes(words))
          && (!given.value || card.dataset.given === given.value)
          && (!suggested.value || card.dataset.suggested === suggested.value);
        found += fits;
        card.hidden = !fits || found > limit;
      }
      grid.append(...sorted);
      more.hidden = found <= limit;
      more.textContent = `Show all ${found}`;
      said.textContent = `${Math.min(found, limit)} of ${cards.length} shown`;
    };
    bar.addEventListener("input", update);
    bar.hidden = false;
    update();
  }

  // Tables: a click on a heading sorts by that column, a second click the other way round.
  for (const table of all("table.sortable")) {
    const heads = all("thead th", table);
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") === "descending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
        const compare = (a, b) => isNaN(a) || isNaN(b) ? String(a).localeCompare(b) : a - b;
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => (up ? 1 : -1) * compare(value(a), value(b)));
        table.tBodies[0].append(...rows);
      });
    });
  }
})();
