"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const put = (id, text) => { $(id).textContent = text; };
  const show = (id, yes) => { $(id).hidden = !yes; };
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const name = () => [...crypto.getRandomValues(new Uint8Array(16))]
    .map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const percent = (p) => p > 0.999 && p < 1 ? "> 99.9 %" : p < 0.001 && p > 0 ? "< 0.1 %"
    : `${(100 * p).toFixed(1).replace(/\.0$/, "")} %`;

  // A tab keeps its name when it is loaded again, so that it can still undo what it did.
  const tab = sessionStorage.tab ??= name();
  let classes = [];
  let sample = 0;
  let item = null;
  let progress = null;
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
      const answer = await ask(verb, { tab, kind, request: name(), ...body });
      notice(answer.conflict ? "Another tab decided on this item in the meantime."
        : answer.nothing ? "This tab has nothing left to undo." : said());
      ({ item, progress } = answer);
      draw();
    } catch (error) {
      notice(error.message);
    } finally {
      busy = false;
      document.body.classList.remove("busy");
    }
  };

  const draw = () => {
    const { total, open, accept, keep, choose, skip } = progress;
    $("bar").max = total || 1;
    $("bar").value = total - open;
    const counts = `${accept} accepted, ${keep} kept, ${choose} changed to another class, ${skip} skipped`;
    put("counts", `${total - open} of ${total} done: ${counts}`);
    show("item", item);
    show("end", !item);
    if (!item) {
      put("sum", `${total} ${total === 1 ? "suspect" : "suspects"}: ${counts}.`);
      show("again", skip);
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
      + "whatever the model is worth. The suspects follow.");
    show("hard", item.ambiguity > 0.5 && !item.drawn);
    put("accept-name", classes[item.predicted]);
    put("accept-p", percent(item.predicted_prob));
    put("keep-name", classes[item.given]);
    put("keep-p", percent(1 - item.p_wrong));
    put("runner-name", classes[item.runner_up]);
    put("runner-p", percent(item.runner_up_prob));
    document.querySelector("[data-do=runner]").hidden = !third;
    put("place", `${item.position + 1} of ${total}, row ${item.row}${item.id && ", id"}`);
    put("id", item.id);
    put("path", item.path);
    show("decided", item.action);
    put("decision", item.label === null ? "skipped" : classes[item.label]);
    fill();
  };

  const fill = () => {
    const values = $("values");
    values.replaceChildren(...item.values.flatMap(([key, value]) => {
      const [term, told] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = key;
      told.textContent = value;
      return [term, told];
    }));
    show("values", item.values.length);
    show("picture", !item.values.length);
    if (!item.values.length) {
      $("picture").src = `picture/${item.row}`;
      $("picture").alt = `row ${item.row}`;
    }
  };
  $("picture").addEventListener("load", ({ target }) => {
    target.classList.toggle("tiny", Math.max(target.naturalWidth, target.naturalHeight) < 128);
  });

  const decide = (action, label) => item
    && turn("decide", { row: item.row, seen: item.seen, action, label });

  // Choosing: type to filter, Enter takes the first.
  const list = () => {
    const words = $("search").value.toLowerCase();
    const fits = classes.map((text, k) => [text, k])
      .filter(([text]) => text.toLowerCase().includes(words)).slice(0, 200);
    $("classes").replaceChildren(...fits.map(([text, k]) => {
      const [line, button] = [document.createElement("li"), document.createElement("button")];
      const word = document.createElement("bdi");
      word.textContent = text;
      button.type = "button";
      button.append(word);
      button.addEventListener("click", () => { $("choose").close(); decide("choose", k); });
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

  const deeds = {
    accept: () => decide("accept"),
    keep: () => decide("keep"),
    runner: () => item && !document.querySelector("[data-do=runner]").hidden
      && decide("choose", item.runner_up),
    other: () => { if (item) { $("search").value = ""; list(); $("choose").showModal(); } },
    skip: () => decide("skip"),
    undo: () => turn("undo", {}, () => "The last decision is taken back."),
    back: () => item && turn("at", { position: Math.max(0, item.position - 1) }),
    forth: () => item && (item.position + 1 < progress.total
      ? turn("at", { position: item.position + 1 }) : turn("next", {})),
  };
  const keys = { a: "accept", Enter: "accept", k: "keep", r: "runner", c: "other", s: "skip", " ": "skip",
    u: "undo", Backspace: "undo", ArrowLeft: "back", ArrowRight: "forth" };
  document.addEventListener("keydown", (event) => {
    const undo = event.key === "z" && (event.ctrlKey || event.metaKey);
    const free = !event.ctrlKey && !event.metaKey && !event.altKey;
    const deed = undo ? "undo" : free && keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    // A held key repeats; one press is one decision.
    if (!deed || event.repeat || $("choose").open) return;
    if (event.key === "Enter" && item?.drawn) return; // nothing is suggested that it could accept
    event.preventDefault();
    deeds[deed]();
  });
  for (const button of document.querySelectorAll("[data-do]")) {
    // Without focus, so that Enter and Space keep their meaning.
    button.addEventListener("click", () => { button.blur(); deeds[button.dataset.do](); });
  }
  $("again").addEventListener("click", () => { kind = "skipped"; turn("next", {}); });

  (async () => {
    ({ classes, sample } = await ask("overview", {}));
    await turn("next", {});
  })();
})();
