"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const put = (id, text) => { $(id).textContent = text; };
  const show = (id, yes) => { $(id).hidden = !yes; };
  const make = (tag, text = "", className = "") => {
    const element = document.createElement(tag);
    element.textContent = text;
    element.className = className;
    return element;
  };
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const name = () => [...crypto.getRandomValues(new Uint8Array(16))]
    .map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const percent = (p) => p > 0.999 && p < 1 ? "> 99.9 %" : p < 0.001 && p > 0 ? "< 0.1 %"
    : `${(100 * p).toFixed(1).replace(/\.0$/, "")} %`;

  // A tab keeps its name when it is loaded again, so that it can still undo what it did.
  const tab = sessionStorage.tab ??= name();
  let classes = [];
  let sample = 0; // rows drawn at random, which come first
  let pictures = false; // of the rows; otherwise their values
  let item = null;
  let progress = null;
  let pair = null; // of the item: how many there are, how many are open
  let filter = null; // the pair that is shown alone
  let kind = "open";
  let busy = false;

  const notice = (text) => { put("notice", text); show("notice", text); };

  // Ask until there is an answer: a request has a name, so asking twice does no harm.
  const ask = async (verb, body) => {
    for (let tries = 1; ; tries++) {
      try {
        const answer = await fetch(verb, {
          method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } });
        if (answer.ok) {
          if (tries > 1) notice("");
          return await answer.json();
        }
        // 400: nonsense; 507: a full disk. The sentence says what to do.
        if ([400, 507].includes(answer.status)) throw new RangeError((await answer.json()).error);
      } catch (error) {
        if (error instanceof RangeError) throw error;
      }
      notice("The server does not answer; this last step is not saved yet and is sent again. If it "
        + "was stopped, start ytilde review again and open its new address: all before is saved.");
      await wait(Math.min(250 * tries, 2000));
    }
  };

  const turn = async (verb, body, said = () => "") => {
    if (busy) return;
    busy = true;
    document.body.classList.add("busy");
    try {
      const answer = await ask(verb, { tab, kind, pair: filter, request: name(), ...body });
      notice(answer.conflict
        ? `Another tab decided on ${verb === "decide" ? "this item" : "some of them"} in the meantime.`
        : answer.nothing ? "This tab has nothing left to undo." : said(answer));
      ({ item, progress, pair, filter } = answer);
      draw();
    } catch (error) {
      notice(error.message);
    } finally {
      busy = false;
      document.body.classList.remove("busy");
    }
  };

  const draw = () => {
    const { total, open, accept, keep, choose, bad, skip } = progress;
    $("bar").max = total || 1;
    $("bar").value = total - open;
    const counts = `${accept} accepted, ${keep} kept, ${choose} changed to another class, ${bad} bad, ${skip} skipped`;
    put("counts", `${total - open} of ${total} done: ${counts}`);
    $("filter").replaceChildren(...filter ? [...arrow(filter), `: ${pair.open} of ${pair.total} open`]
      : ["all pairs of classes"]);
    show("item", item);
    show("end", !item);
    if (!item) {
      put("said", "");
      put("end-title", filter ? "Nothing is left of this pair." : "Nothing is left to decide.");
      put("sum", `${total} ${total === 1 ? "suspect" : "suspects"}: ${counts}.`);
      show("again", skip);
      show("all", filter);
      show("all-done", !filter);
      return;
    }
    const third = item.runner_up !== item.given && item.runner_up !== item.predicted;
    put("given", classes[item.given]);
    put("predicted", classes[item.predicted]);
    put("p", percent(item.p_wrong));
    $("meter").value = item.p_wrong;
    // Of a random row the model's opinion is not shown: the answer is to be the reviewer's own.
    for (const id of ["probably", "wrong"]) show(id, !item.drawn);
    for (const id of ["accept-p", "keep-p", "runner-p"]) show(id, !item.drawn);
    document.querySelector("[data-do=accept]").classList.toggle("main", !item.drawn);
    show("drawn", item.drawn);
    put("drawn", `Random sample, ${item.position + 1} of ${sample}: it tells how many labels are wrong, `
      + "however good or bad the model is. The suspects follow.");
    show("hard", item.ambiguity > 0.5 && !item.drawn);
    put("accept-name", classes[item.predicted]);
    put("accept-p", percent(item.predicted_prob));
    put("keep-name", classes[item.given]);
    put("keep-p", percent(1 - item.p_wrong));
    put("runner-name", classes[item.runner_up]);
    put("runner-p", percent(item.runner_up_prob));
    document.querySelector("[data-do=runner]").hidden = !third;
    put("pair-open", pair?.open);
    document.querySelector("[data-do=pair]").hidden = !(pair?.open > 1);
    put("place", `${item.position + 1} of ${filter ? pair.total : total}, row ${item.row}${item.id && ", id"}`);
    put("id", item.id);
    put("path", item.path);
    put("said", `${item.position + 1}: given ${classes[item.given]}`
      + (item.drawn ? "" : `, probably ${classes[item.predicted]}`));
    show("decided", item.action);
    put("decision", item.action === "bad" ? "bad item" : item.label === null ? "skipped" : classes[item.label]);
    fill();
    similar();
  };

  const arrow = ([given, predicted]) => [make("bdi", classes[given]), " → ", make("bdi", classes[predicted])];

  const fill = () => {
    show("values", !pictures);
    show("zoom", pictures);
    $("values").firstElementChild.replaceChildren(...item.values.flatMap(
      ([key, value]) => [make("dt", key), make("dd", value)]));
    if (pictures) {
      $("picture").src = `picture/${item.row}`;
      $("picture").alt = `row ${item.row}, labelled ${classes[item.given]}`;
    }
  };
  const sharpen = ({ target }) => {
    target.classList.toggle("tiny", Math.max(target.naturalWidth, target.naturalHeight) < 128);
  };
  $("picture").addEventListener("load", sharpen);

  // Similar items: asked for apart, so that the item itself never waits for them.
  const similar = async () => {
    const open = sessionStorage.similar !== "hidden";
    show("similar", item.similar);
    show("beside", open);
    put("similar-word", open ? "hide" : "show");
    document.querySelector("[data-do=similar]").setAttribute("aria-expanded", open);
    if (!item.similar || !open || $("beside").dataset.row === String(item.row)) return;
    const { row, given, predicted } = item;
    $("beside").replaceChildren();
    const found = await fetch("similar", { method: "POST", body: JSON.stringify({ row }) })
      .then((answer) => answer.ok ? answer.json() : null, () => null);
    if (!found || item?.row !== row) return;
    $("beside").dataset.row = row;
    $("beside").replaceChildren(...pictures ? [gallery("given", given, found), gallery("predicted", predicted, found)]
      : [table(found)]);
  };
  const gallery = (key, label, found) => {
    const [side, title, list] = [make("div"), make("h3", "labelled "), make("ul")];
    title.append(make("bdi", classes[label], key));
    list.append(...found[key].map((near) => witness(near, classes[label])));
    side.append(title, found[key].length ? list : make("p", "No row of this class is beyond doubt.", "soft"));
    return side;
  };
  const witness = (near, label) => {
    const [line, button, image] = [make("li"), make("button", "", "bare"), make("img")];
    button.type = "button";
    image.alt = `row ${near.row}, labelled ${label}`;
    image.addEventListener("load", sharpen);
    image.src = `picture/${near.row}/small`;
    button.append(image);
    button.addEventListener("click", () => enlarge(near.row, image.alt));
    line.append(button, placed(near));
    return line;
  };
  const placed = (near) => {
    const place = make("p", `row ${near.row}${near.id && ", id "}`, "soft");
    place.append(make("bdi", near.id));
    return place;
  };
  // The item first, then those that it may be like: a column each, or a line each to read texts.
  const table = (found) => {
    const items = [[item, "", "this item"], ...["given", "predicted"].flatMap(
      (key) => found[key].map((near) => [near, key, classes[item[key]]]))];
    const whole = make("table");
    const line = (...cells) => { const made = make("tr"); made.append(...cells); whole.append(made); };
    const head = (scope, ...parts) => { const made = make("th"); made.scope = scope; made.append(...parts); return made; };
    const title = ([near, kind, label]) => [make("bdi", label, kind), ...near === item ? [] : [placed(near)]];
    if (items.some(([{ values }]) => values.some(([, value]) => value.length > 40))) {
      line(make("td"), ...item.values.map(([name]) => head("col", make("bdi", name))));
      for (const each of items) line(head("row", ...title(each)), ...each[0].values.map(([, value]) => make("td", value)));
    } else {
      line(make("td"), ...items.map((each) => head("col", ...title(each))));
      item.values.forEach(([name], k) => line(head("row", make("bdi", name)),
        ...items.map(([{ values }]) => make("td", values[k][1]))));
    }
    return whole;
  };

  // A picture at its own size; one that is tiny is shown in whole multiples of it.
  const enlarge = (row, alt) => {
    put("large-size", "");
    $("large-picture").src = `picture/${row}/full`;
    $("large-picture").alt = alt;
    $("large").showModal();
  };
  $("large-picture").addEventListener("load", ({ target }) => {
    const { naturalWidth: width, naturalHeight: height } = target;
    const times = Math.max(1, Math.floor(384 / Math.max(width, height)));
    target.style.width = `${times * width}px`;
    target.classList.toggle("tiny", times > 1);
    put("large-size", `${width} × ${height} pixels${times > 1 ? `, shown ${times} times as large` : ""}`);
  });
  $("large-close").addEventListener("click", () => $("large").close());

  const decide = (action, label) => item
    && turn("decide", { row: item.row, seen: item.seen, action, label });

  // Choosing from a list: type to filter, Enter takes the first.
  let options = [];
  const pick = (label, hint, offered) => {
    options = offered;
    $("choose").setAttribute("aria-label", label);
    Object.assign($("search"), { value: "", placeholder: hint, ariaLabel: label });
    list();
    $("choose").showModal();
  };
  const list = () => {
    const words = $("search").value.toLowerCase();
    const fits = options.filter(({ text }) => text.toLowerCase().includes(words)).slice(0, 200);
    $("classes").replaceChildren(...fits.map(({ shown, take }) => {
      const [line, button] = [make("li"), make("button")];
      button.type = "button";
      button.append(...shown());
      button.addEventListener("click", () => { $("choose").close(); take(); });
      line.append(button);
      return line;
    }));
  };
  $("search").addEventListener("input", list);
  $("search").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    $("classes").querySelector("button")?.click();
  });

  const only = (chosen) => { filter = chosen; kind = "open"; turn("next", {}); };
  const choosePair = async () => {
    if (busy) return;
    const { pairs } = await ask("pairs", {});
    const every = { text: "all pairs of classes", shown: () => ["all pairs of classes"], take: () => only(null) };
    pick("show one pair of classes", "type a class, Enter takes the first", [every, ...pairs.map((each) => ({
      text: each.pair.map((k) => classes[k]).join(" → "),
      shown: () => {
        const word = make("span");
        word.append(...arrow(each.pair));
        return [word, make("small", `${each.open} of ${each.total} open`)];
      },
      take: () => only(each.pair),
    }))]);
  };

  const confirmPair = () => {
    if (!item || !(pair?.open > 1) || busy) return;
    put("confirm-open", pair.open);
    put("confirm-given", classes[item.given]);
    put("confirm-predicted", classes[item.predicted]);
    $("confirm").showModal();
  };
  $("confirm-yes").addEventListener("click", () => {
    $("confirm").close();
    turn("accept-pair", { pair: pair.pair, open: pair.open, only: filter },
      ({ decided }) => `${decided} accepted; one undo takes them back.`);
  });
  $("confirm-no").addEventListener("click", () => $("confirm").close());

  const deeds = {
    accept: () => decide("accept"),
    keep: () => decide("keep"),
    runner: () => item && !document.querySelector("[data-do=runner]").hidden
      && decide("choose", item.runner_up),
    other: () => item && pick("choose a class", "type a class, Enter takes the first", classes.map((text, k) => ({
      text, shown: () => [make("bdi", text)], take: () => decide("choose", k) }))),
    bad: () => decide("bad"),
    skip: () => decide("skip"),
    undo: () => turn("undo", {}, ({ undone }) => undone > 1 ? `${undone} decisions are taken back.`
      : "The last decision is taken back."),
    back: () => item && turn("at", { position: Math.max(0, item.position - 1) }),
    forth: () => item && (item.position + 1 < (filter ? pair.total : progress.total)
      ? turn("at", { position: item.position + 1 }) : turn("next", {})),
    filter: choosePair,
    pair: confirmPair,
    zoom: () => item && pictures && enlarge(item.row, $("picture").alt),
    similar: () => {
      if (!item?.similar) return;
      sessionStorage.similar = sessionStorage.similar === "hidden" ? "" : "hidden";
      similar();
    },
  };
  const keys = { a: "accept", Enter: "accept", k: "keep", r: "runner", c: "other", b: "bad", s: "skip", " ": "skip",
    u: "undo", Backspace: "undo", ArrowLeft: "back", ArrowRight: "forth", f: "filter", p: "pair", z: "zoom",
    n: "similar" };
  document.addEventListener("keydown", (event) => {
    const undo = event.key === "z" && (event.ctrlKey || event.metaKey);
    const free = !event.ctrlKey && !event.metaKey && !event.altKey;
    const deed = undo ? "undo" : free && keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    // A held key repeats; one press is one decision. Enter and Space press a button that has the focus.
    const pressed = ["Enter", " "].includes(event.key) && event.target.closest("button");
    if (!deed || pressed || event.repeat || document.querySelector("dialog[open]")) return;
    if (event.key === "Enter" && item?.drawn) return; // nothing is suggested that it could accept
    event.preventDefault();
    deeds[deed]();
  });
  for (const button of document.querySelectorAll("[data-do]")) {
    // A mouse leaves no focus behind, so that Enter and Space keep their meaning.
    button.addEventListener("click", ({ detail }) => { if (detail) button.blur(); deeds[button.dataset.do](); });
  }
  $("again").addEventListener("click", () => { kind = "skipped"; turn("next", {}); });
  $("all").addEventListener("click", () => only(null));

  (async () => {
    ({ classes, sample, picture: pictures } = await ask("overview", {}));
    await turn("next", {});
  })();
})();
