"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);

  let figures = null; // Bokeh's document, once it is drawn

  // The figures are drawn when Bokeh's document has nothing left to do.
  function whenDrawn(then) {
    const documents = window.Bokeh ? window.Bokeh.documents : [];
    if (!data.figures) then();
    else if (documents.length && documents.every((one) => one.is_idle)) {
      figures = documents[0];
      then();
    } else setTimeout(() => whenDrawn(then), 10);
  }

  function recommend(index) {
    const now = data.recommendations[index];
    byId("epsilon-shown").textContent = "ε ≤ " + now.limit;
    byId("recommendation").replaceChildren(
      ...now.words.flatMap(([name, value]) => {
        const term = document.createElement("dt");
        const said = document.createElement("dd");
        term.textContent = name;
        said.textContent = value;
        return [term, said];
      })
    );
    const show = (name, columns) => {
      const source = figures && figures.get_model_by_name(name);
      if (source) source.data = { ...source.data, ...columns };
    };
    show("recommended", now.point);
    (now.slices || []).forEach((columns, i) => show("slice " + i, columns));
  }

  function startSlider() {
    const slider = byId("epsilon");
    const limits = data.recommendations.map((stop) => Number(stop.limit));
    const kept = data.live && Number(sessionStorage.getItem("epsilon"));
    if (kept) {
      // The stops move as trials come: go to the one that is nearest to what was chosen.
      const away = limits.map((limit) => Math.abs(Math.log(limit / kept)));
      slider.value = away.indexOf(Math.min(...away));
    }
    slider.addEventListener("input", () => {
      if (data.live) sessionStorage.setItem("epsilon", limits[slider.value]);
      recommend(Number(slider.value));
    });
    recommend(Number(slider.value));
  }

  const inFull = (cell) => cell.dataset.value ?? cell.textContent;

  function sort(head) {
    const row = head.parentElement;
    const column = [...row.children].indexOf(head);
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of row.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const body = row.closest("table").tBodies[0];
    const value = (line) => inFull(line.cells[column]);
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === ""); // what is missing comes last
      const difference = Number(x) - Number(y);
      return sign * (Number.isNaN(difference) ? x.localeCompare(y) : difference);
    };
    body.append(...[...body.rows].sort(compare));
  }

  function save(name) {
    const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const lines = [...byId(name).rows].map((row) =>
      [...row.cells].map((cell) => quoted(inFull(cell))).join(",")
    );
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
    link.download = name + ".csv";
    link.click();
    URL.revokeObjectURL(link.href);
  }

  for (const head of document.querySelectorAll("th")) {
    head.querySelector("button").addEventListener("click", () => sort(head));
  }
  for (const button of document.querySelectorAll("button.save")) {
    button.addEventListener("click", () => save(button.dataset.table));
  }
  if (data.recommendations) startSlider();

  function follow() {
    setInterval(async () => {
      try {
        const answer = await fetch("state" + location.search);
        if (answer.ok && (await answer.json()).state !== data.state) location.reload();
      } catch {
        byId("live").textContent = "The dashboard was closed; this is what it showed last.";
      }
    }, 2000);
  }

  whenDrawn(() => {
    if (data.recommendations) recommend(Number(byId("epsilon").value));
    document.documentElement.dataset.drawn = String(Math.round(performance.now()));
    if (data.live) follow();
  });
})();
