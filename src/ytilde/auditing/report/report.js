"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (tag, text = "", className = "") => {
    const element = document.createElement(tag);
    element.textContent = text;
    element.className = className;
    return element;
  };
  const percent = (p) => p > 0.9995 && p < 1 ? "> 99.9 %" : p < 0.0005 && p > 0 ? "< 0.1 %"
    : `${(100 * p).toFixed(1).replace(/\.0$/, "")} %`;
  const number = (n) => n.toLocaleString("en");

  // ---- what the page knows ---------------------------------------------------------------------

  const data = JSON.parse(document.getElementById("data").textContent);

  // A card that stands in the page, as an entry of a gallery.
  const ofCard = (card, chosen) => ({
    row: +card.dataset.row, given: card.dataset.given, suggested: card.dataset.suggested,
    p: +card.dataset.p, ambiguity: +card.dataset.ambiguity, chosen, rank: chosen,
    text: card.textContent.toLowerCase(), card: () => card });

  // Every suspect. Those without a card get one when they are shown: a copy of the first, filled anew.
  const suspects = (cards) => {
    const standing = new Map(cards.map((card, place) => [+card.dataset.row, [card, place]]));
    return data.suspects.map(([row, given, suggested, p, ambiguity, id, path, values, picture], rank) => {
      const [own, chosen] = standing.get(row) ?? [null, cards.length + rank];
      const entry = { row, p, ambiguity, id, path, values, rank, chosen, given: data.classes[given],
        suggested: data.classes[suggested], picture: own ? own.querySelector("img")?.src : picture };
      entry.text = [entry.given, "→", entry.suggested, row, id ?? "", path ?? "", ...values ?? []].join(" ").toLowerCase();
      entry.card = () => own ?? filled(cards[0], entry);
      return entry;
    });
  };
  const filled = (model, entry) => {
    const card = model.cloneNode(true);
    Object.assign(card.dataset, { row: entry.row, given: entry.given, suggested: entry.suggested,
      p: entry.p, ambiguity: entry.ambiguity });
    const put = (slot, text) => all(`[data-slot=${slot}]`, card).forEach((place) => {
      (place.querySelector("bdi") ?? place).textContent = text;
    });
    for (const slot of ["given", "suggested", "row", "id", "path"]) put(slot, entry[slot] ?? "");
    put("p", percent(entry.p));
    put("ambiguity", entry.ambiguity.toFixed(2));
    card.querySelector("[data-slot=meter]").style.width = `${100 * entry.p}%`;
    all("[data-slot=value]", card).forEach((place, k) => { place.firstElementChild.textContent = entry.values[k]; });
    card.querySelector("img")?.remove();
    if (entry.picture) card.prepend(image(entry.picture, `row ${entry.row}, labelled ${entry.given}`));
    return card;
  };
  const image = (address, alt) => {
    const made = make("img", "", address.startsWith("data:image/png") ? "tiny" : "");
    made.src = address;
    made.alt = alt;
    return made;
  };

  // ---- galleries: search, filter, sort; a part of what fits is shown ----------------------------

  for (const box of all("section.gallery")) {
    const cards = all(".card", box);
    if (!cards.length) continue;
    const whole = box.id === "suspects";
    const entries = whole ? suspects(cards) : cards.map(ofCard);
    const [grid, bar, said] = [".cards", ".controls", ".shown"].map((what) => box.querySelector(what));
    const [text, pair, order] = ["text", "pair", "order"].map((name) => bar.querySelector(`[name=${name}]`));

    // Pairs of classes by how often they are mistaken, then each class on one side.
    const group = (title, keyOf, nameOf) => {
      const counts = new Map();
      for (const entry of entries) counts.set(keyOf(entry), (counts.get(keyOf(entry)) ?? 0) + 1);
      const part = document.createElement("optgroup");
      part.label = title;
      for (const [key, count] of [...counts].sort((a, b) => b[1] - a[1])) {
        part.append(new Option(`${nameOf(...JSON.parse(key))} (${number(count)})`, key));
      }
      pair.append(part);
    };
    group("one pair", (e) => JSON.stringify([e.given, e.suggested]), (given, suggested) => `${given} → ${suggested}`);
    group("given", (e) => JSON.stringify([e.given, null]), (given) => `${given} → any`);
    group("suggested", (e) => JSON.stringify([null, e.suggested]), (_, suggested) => `any → ${suggested}`);

    const first = matchMedia("(max-width: 30rem)").matches ? 12 : 24;
    let limit = first;
    let fits = entries;
    const more = make("button", "", "more");
    more.type = "button";
    more.addEventListener("click", () => {
      const before = limit;
      limit += 96;
      show();
      grid.children[before]?.querySelector(".open")?.focus();
    });
    grid.after(more);

    const show = () => {
      const shown = fits.slice(0, limit);
      grid.replaceChildren(...shown.map((entry) => {
        const card = entry.card();
        const open = card.querySelector(".open");
        if (open) {
          open.hidden = false;
          open.onclick = () => closer.show(fits, fits.indexOf(entry));
          const picture = card.querySelector("img");
          if (picture) picture.onclick = open.onclick;
        }
        return card;
      }));
      const left = fits.length - shown.length;
      more.hidden = !left;
      more.textContent = `Show ${number(Math.min(96, left))} more`;
      const found = fits.length < entries.length ? `${number(fits.length)} found, ` : "";
      said.textContent = `${found}${number(shown.length)} of ${number(entries.length)} shown`;
    };
    const update = () => {
      const words = text.value.toLowerCase();
      const [given, suggested] = pair.value ? JSON.parse(pair.value) : [null, null];
      const [key, sign] = order.value.split(":");
      fits = entries.filter((entry) => entry.text.includes(words)
        && (given === null || entry.given === given) && (suggested === null || entry.suggested === suggested));
      fits.sort((a, b) => sign * (a[key] - b[key]));
      limit = first;
      show();
    };
    bar.addEventListener("input", update);
    bar.addEventListener("submit", (event) => event.preventDefault());
    bar.hidden = false;
    update();
  }

  // ---- a closer look: the picture at its own size, all values, what the item may be like ---------

  const closer = (() => {
    const dialog = document.getElementById("closer");
    const [frame, beside] = [dialog.querySelector(".frame"), document.getElementById("beside")];
    let entries = [];
    let place = 0;

    // The item first, then those that it may be like: a column each, or a line each to read texts.
    const values = (items) => {
      const table = make("table");
      const head = (scope, ...parts) => { const made = make("th"); made.scope = scope; made.append(...parts); return made; };
      const line = (...cells) => { const made = make("tr"); made.append(...cells); table.append(made); };
      if (items.length > 1) table.append(make("caption", "With similar items whose label is not suspected"));
      if (data.texts) {
        line(make("td"), ...data.columns.map((name) => head("col", make("bdi", name))));
        for (const item of items) line(head("row", ...item.title), ...item.values.map((value) => make("td", value)));
      } else {
        if (items.length > 1) line(make("td"), ...items.map((item) => head("col", ...item.title)));
        data.columns.forEach((name, k) => line(head("row", make("bdi", name)), ...items.map((item) => make("td", item.values[k]))));
      }
      return table;
    };
    const titled = (label, kind, row) => {
      const [id, path] = data.near[row];
      return [make("bdi", label, kind), make("small", ` row ${row}${id ? `, id ${id}` : ""}${path ? `, ${path}` : ""}`)];
    };
    const draw = () => {
      const entry = entries[place];
      dialog.querySelector(".given").textContent = entry.given;
      dialog.querySelector(".suggested").textContent = entry.suggested;
      const parts = [`${number(place + 1)} of ${number(entries.length)}`, `row ${entry.row}`,
        entry.id && `id ${entry.id}`, entry.path, `wrong: ${percent(entry.p)}`, `ambiguity ${entry.ambiguity.toFixed(2)}`];
      document.getElementById("closer-place").textContent = parts.filter(Boolean).join(", ");
      const near = data.similar[entry.row];
      const witnesses = near ? near.flatMap((rows, k) => rows.map((row) => [row, k ? "suggested" : "given"])) : [];
      frame.replaceChildren();
      beside.replaceChildren();
      if (entry.picture) {
        const picture = image(entry.picture, `row ${entry.row}, labelled ${entry.given}`);
        picture.onload = () => {
          const side = Math.max(picture.naturalWidth, picture.naturalHeight);
          picture.style.width = `${picture.naturalWidth * Math.max(1, Math.floor(320 / side))}px`;
        };
        frame.append(picture);
      }
      if (entry.values) {
        const own = { title: [make("b", "this item")], values: entry.values };
        const others = witnesses.map(([row, kind]) => ({ title: titled(entry[kind], kind, row), values: data.near[row][2] }));
        frame.append(values([own, ...others]));
      } else if (!entry.picture) {
        frame.append(make("p", "This file has no picture of it.", "soft"));
      }
      if (!near && Object.keys(data.similar).length) {
        beside.append(make("p", "This file has similar items for the suspects that it shows first.", "soft"));
      }
      if (witnesses.length && !entry.values) {
        beside.append(make("h3", "Similar items whose label is not suspected"));
        for (const kind of ["given", "suggested"]) {
          const [side, list] = [make("div"), make("ul")];
          const title = make("p", "labelled ", "soft");
          title.append(make("bdi", entry[kind], kind));
          list.append(...witnesses.filter(([, own]) => own === kind).map(([row]) => {
            const line = make("li");
            if (data.near[row][3]) line.append(image(data.near[row][3], `row ${row}, labelled ${entry[kind]}`));
            line.append(make("small", titled("", "", row)[1].textContent));
            return line;
          }));
          side.append(title, list);
          beside.append(side);
        }
      }
      for (const [step, end] of [[-1, 0], [1, entries.length - 1]]) {
        dialog.querySelector(`[data-step="${step}"]`).disabled = place === end;
      }
    };
    const go = (step) => {
      if (place + step < 0 || place + step >= entries.length) return;
      place += step;
      draw();
    };
    dialog.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step && event.target !== frame) go(step);
    });
    for (const button of all("[data-step]", dialog)) {
      button.addEventListener("click", () => +button.dataset.step ? go(+button.dataset.step) : dialog.close());
    }
    return { show: (shown, first) => { [entries, place] = [shown, first]; draw(); dialog.showModal(); } };
  })();

  // ---- tables: a click on a heading sorts by that column, a second click the other way round -----

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
