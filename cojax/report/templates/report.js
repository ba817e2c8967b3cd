"use strict";
(() => {
  const FIRST = 200; // rows shown before anybody asks for more
  const root = document.documentElement;
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));
  const words = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);

  // --- light and dark ---------------------------------------------------------------------------
  const theme = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => {
    try { return localStorage.getItem("cojax-theme"); } catch { return null; }
  };
  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const tell = () => {
    theme.textContent = isDark() ? "Light" : "Dark";
    theme.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours");
    theme.setAttribute("aria-pressed", String(isDark()));
  };
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("cojax-theme", root.dataset.theme); } catch { /* a page without storage */ }
    tell();
  });
  system.addEventListener("change", tell);
  tell();

  // --- tables: sorting, filtering, the first rows -------------------------------------------------
  const number = (cell) => {
    const text = cell.dataset.v.replace("inf", "Infinity"); // as Python writes it
    return text === "" ? NaN : Number(text);
  };
  const setUp = (table) => {
    const body = table.tBodies[0];
    const original = Array.from(body.rows);
    let text = null; // of each row, taken when somebody first looks for something
    const tools = document.querySelector(`.tools[data-table="${table.id}"]`);
    const more = document.querySelector(`.more[data-table="${table.id}"]`);
    const [search, select, failing] = ["input[type=search]", "select", "input[type=checkbox]"].map(
      (selector) => tools.querySelector(selector));
    let order = original;
    let everything = false;

    const show = () => {
      const wanted = words(search.value);
      if (wanted.length) text ??= new Map(original.map((row) => [row, row.textContent.toLowerCase()]));
      let matching = 0;
      let visible = 0;
      for (const row of order) {
        const matches = wanted.every((word) => text.get(row).includes(word))
          && (!select || !select.value || row.dataset.policy === select.value)
          && (!failing || !failing.checked || Number(row.dataset.failures) > 0);
        matching += matches;
        row.hidden = !matches || (!everything && visible >= FIRST);
        visible += !row.hidden;
      }
      const count = tools.querySelector(".count");
      const of = matching === order.length ? "" : ` of ${order.length.toLocaleString("en")}`;
      count.textContent = `${matching.toLocaleString("en")}${of} rows`;
      more.hidden = visible === matching;
      more.textContent = `Show all ${matching.toLocaleString("en")} rows`;
    };
    const sort = (header, column) => {
      const now = header.getAttribute("aria-sort");
      const next = now === "ascending" ? "descending" : now === "descending" ? "none" : "ascending";
      all("th[aria-sort]", table.tHead).forEach((h) => h.setAttribute("aria-sort", "none"));
      header.setAttribute("aria-sort", next);
      if (next === "none") {
        order = original;
      } else {
        const sign = next === "ascending" ? 1 : -1;
        const textual = header.dataset.kind === "text";
        const key = new Map(original.map((row) => {
          const cell = row.cells[column];
          return [row, textual ? cell.textContent : number(cell)];
        }));
        const compare = new Intl.Collator("en", { numeric: true }).compare;
        order = original.slice().sort((a, b) => {
          const [x, y] = [key.get(a), key.get(b)];
          if (textual) return sign * compare(x, y);
          if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
          return x === y ? 0 : sign * (x < y ? -1 : 1);
        });
      }
      const fragment = document.createDocumentFragment();
      fragment.append(...order);
      body.append(fragment);
      show();
    };

    Array.from(table.tHead.rows[0].cells).forEach((header, column) => {
      if (header.classList.contains("plain")) return;
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = header.textContent;
      header.textContent = "";
      header.append(button);
      header.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => sort(header, column));
    });
    for (const control of [search, select, failing]) control?.addEventListener("input", show);
    more.addEventListener("click", () => { everything = true; show(); });
    show();
  };
  all("table.sortable").forEach(setUp);

  // --- cards ------------------------------------------------------------------------------------
  const tools = document.querySelector(".tools[data-cards]");
  const cards = all("#cards > details");
  const names = cards.map((card) => card.querySelector(".id").textContent.toLowerCase());
  tools.querySelector("input").addEventListener("input", (event) => {
    const wanted = words(event.target.value);
    let count = 0;
    cards.forEach((card, k) => {
      card.hidden = !wanted.every((word) => names[k].includes(word));
      count += !card.hidden;
    });
    const of = count === cards.length ? "" : ` of ${cards.length.toLocaleString("en")}`;
    tools.querySelector(".count").textContent = `${count.toLocaleString("en")}${of} systems`;
  });
  const open = () => {
    const card = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (card instanceof HTMLDetailsElement) {
      card.hidden = false;
      card.open = true;
      card.scrollIntoView();
    }
  };
  addEventListener("hashchange", open);
  open();

  // --- figures and commands ----------------------------------------------------------------------
  const viewer = document.getElementById("viewer");
  const large = viewer.querySelector("img");
  all(".enlarge").forEach((button) => button.addEventListener("click", () => {
    const image = button.querySelector("img");
    large.src = image.src;
    large.alt = image.alt;
    viewer.showModal();
  }));
  viewer.addEventListener("click", (event) => {
    if (event.target === viewer || event.target === large) viewer.close();
  });
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button.copy");
    if (!button) return;
    await copy(button.dataset.copy);
    const label = button.textContent;
    if (label === "Copied") return;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = label; }, 1500);
  });
})();
