// Token maps: which token holds each patch after each block of a model, or of two models side by side.

(() => {
  const { data, make, draw } = report;
  const gallery = data.gallery;
  if (!gallery || !gallery.models.length || !gallery.pictures.length) return;

  const FADED = 0.8; // share of the background color in a dropped patch
  const TINTED = 0.35; // share of the token's mean color in a fused patch
  const OUTLINE = "#ffc400"; // rare in photographs, and visible on dark and bright ones
  const NOTHING = "nothing";
  const PLAIN = "plain";
  const slider = document.getElementById("block");
  const words = document.getElementById("token-words");
  const play = document.getElementById("play");
  const state = { picture: 0, patch: null, timer: null };
  const pictures = gallery.pictures.map(() => null); // loaded when first shown
  const panes = [makePane("Tokens of", false), makePane("next to", true)];

  function makePane(name, mayBeEmpty) {
    const models = gallery.models.map((model, index) => make("option", { value: index }, model.label));
    const others = [[NOTHING, "nothing"], [PLAIN, "the original picture"]];
    const extra = mayBeEmpty ? others.map(([value, text]) => make("option", { value }, text)) : [];
    const select = make("select", { onchange: redraw }, ...extra, ...models);
    const canvas = make("canvas", { tabindex: 0, role: "application", "aria-roledescription": "token map" });
    const caption = make("p");
    const root = make("div", {}, canvas, caption);
    const pane = { select, canvas, caption, root };
    canvas.addEventListener("pointermove", (event) => point(pane, event));
    canvas.addEventListener("pointerdown", (event) => point(pane, event));
    canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && lookAt(null));
    canvas.addEventListener("blur", () => lookAt(null));
    canvas.addEventListener("keydown", (event) => walk(pane, event));
    document.getElementById("pane-choices").append(make("label", {}, make("span", {}, name), select));
    document.getElementById("panes").append(root);
    return pane;
  }

  function modelOf(pane) {
    return gallery.models[Number(pane.select.value)] || null;
  }

  /** The patch grid of a pane; the plain picture uses that of the model next to it. */
  function gridOf(pane) {
    return (modelOf(pane) || modelOf(panes[0])).grid;
  }

  /** The token that holds each patch at a slider position: 0 is before the first block, b + 1 after block b. */
  function held(pane, position = Number(slider.value)) {
    const [rows, columns] = gridOf(pane);
    const owner = Int32Array.from({ length: rows * columns }, (_, patch) => patch);
    const model = modelOf(pane);
    if (!model) return { owner, fuses: false, text: "every patch is a token" };
    const way = model.walks[state.picture];
    const block = Math.min(position, model.blocks) - 1;
    let tokens = owner.length;
    let keys = null;
    for (const stage of way.stages) {
      if (stage.block > block || (stage.keys && stage.block !== block)) continue;
      for (const [token, ...patches] of stage.moved) for (const patch of patches) owner[patch] = token;
      if (stage.keys) keys = stage.left;
      else tokens = stage.left;
    }
    const text = caption(model, block, tokens, keys, owner.length);
    return { owner, fuses: way.fuses, overlaps: way.overlaps, text, share: (keys ?? tokens) / owner.length };
  }

  function caption(model, block, tokens, keys, patches) {
    if (block < 0) return `before block 0: ${patches} of ${patches} tokens`;
    if (keys !== null) return `keys in block ${block}: ${keys} of ${patches}; all tokens stay`;
    if (model.ends && block === model.blocks - 1) return `in block ${block}: ${tokens} of ${patches} tokens, then none`;
    return `after block ${block}: ${tokens} of ${patches} tokens`;
  }

  /** The picture and its pixels once loaded, else null. */
  function loaded(index) {
    if (pictures[index]) return pictures[index].ready ? pictures[index] : null;
    const image = new Image();
    pictures[index] = { image, ready: false };
    image.onload = () => {
      const copy = make("canvas", { width: image.naturalWidth, height: image.naturalHeight });
      const context = copy.getContext("2d", { willReadFrequently: true });
      context.drawImage(image, 0, 0);
      Object.assign(pictures[index], { ready: true, pixels: context.getImageData(0, 0, copy.width, copy.height) });
      redraw();
    };
    image.src = gallery.pictures[index].source;
    return null;
  }

  /** A function that returns the mean color of a token's patches. */
  function meanColors({ pixels }, [rows, columns], owner) {
    const { data: bytes, width, height } = pixels;
    const sums = new Map();
    for (let y = 0; y < height; y++) {
      const row = Math.floor((y * rows) / height) * columns;
      for (let x = 0; x < width; x++) {
        const token = owner[row + Math.floor((x * columns) / width)];
        if (!sums.has(token)) sums.set(token, [0, 0, 0, 0]);
        const sum = sums.get(token);
        const at = 4 * (y * width + x);
        for (let c = 0; c < 3; c++) sum[c] += bytes[at + c];
        sum[3]++;
      }
    }
    return (token) => `rgb(${sums.get(token).slice(0, 3).map((s) => Math.round(s / sums.get(token)[3]))})`;
  }

  function membersOf(owner) {
    const members = new Map();
    for (const token of owner) members.set(token, (members.get(token) || 0) + 1);
    return (patch) => (owner[patch] < 0 ? 0 : members.get(owner[patch]));
  }

  function drawPane(pane, picture) {
    const { canvas } = pane;
    const grid = gridOf(pane);
    const now = held(pane);
    const width = Math.round(canvas.clientWidth * (window.devicePixelRatio || 1));
    const height = Math.round((width * picture.image.naturalHeight) / picture.image.naturalWidth);
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d");
    const edge = (place, number, length) => Math.round((place * length) / number);
    const cell = (patch) => {
      const [row, column] = [Math.floor(patch / grid[1]), patch % grid[1]];
      const [x, y] = [edge(column, grid[1], width), edge(row, grid[0], height)];
      return [x, y, edge(column + 1, grid[1], width) - x, edge(row + 1, grid[0], height) - y];
    };
    context.imageSmoothingQuality = "high";
    context.drawImage(picture.image, 0, 0, width, height);
    fillPatches(context, cell, now, meanColors(picture, grid, now.owner));
    const thin = Math.max(1, Math.round(width / 300));
    const members = membersOf(now.owner);
    outline(context, cell, now.owner, grid, OUTLINE, thin, (a, b) => members(a) > 1 || (b !== null && members(b) > 1));
    if (state.patch !== null) highlight(context, cell, now.owner, grid, thin);
    pane.caption.textContent = modelOf(pane) ? now.text : "every patch is a token";
    const name = gallery.pictures[state.picture].name;
    canvas.setAttribute("aria-label", `${name}, ${now.text}. Use the arrow keys to move between patches.`);
    return now;
  }

  function fillPatches(context, cell, { owner, fuses }, mean) {
    const paper = getComputedStyle(document.documentElement).getPropertyValue("--paper");
    const members = membersOf(owner);
    const fill = (patch, color, alpha) => {
      context.globalAlpha = alpha;
      context.fillStyle = color;
      context.fillRect(...cell(patch));
    };
    owner.forEach((token, patch) => {
      if (token < 0 || (members(patch) > 1 && fuses)) fill(patch, paper, FADED);
      if (members(patch) > 1) fill(patch, mean(token), fuses ? TINTED : 1);
    });
    context.globalAlpha = 1;
  }

  /** Draw lines between patches of different tokens where "counts" is true; a patch at the rim has no neighbor. */
  function outline(context, cell, owner, [rows, columns], color, thick, counts, rim = false) {
    context.fillStyle = color;
    const half = Math.floor(thick / 2);
    owner.forEach((token, patch) => {
      const [x, y, w, h] = cell(patch);
      const [row, column] = [Math.floor(patch / columns), patch % columns];
      const left = column ? patch - 1 : null;
      const above = row ? patch - columns : null;
      const atRim = rim && counts(patch, null);
      const differs = (other) => (other === null ? atRim : owner[other] !== token && counts(patch, other));
      if (differs(left)) context.fillRect(x - (column ? half : 0), y - half, thick, h + thick);
      if (differs(above)) context.fillRect(x - half, y - (row ? half : 0), w + thick, thick);
      if (atRim && column === columns - 1) context.fillRect(x + w - thick, y - half, thick, h + thick);
      if (atRim && row === rows - 1) context.fillRect(x - half, y + h - thick, w + thick, thick);
    });
  }

  function highlight(context, cell, owner, grid, thin) {
    const token = owner[state.patch];
    const own = token < 0 ? (patch) => patch === state.patch : (patch) => owner[patch] === token;
    context.globalAlpha = 0.45;
    context.fillStyle = "#000";
    owner.forEach((_, patch) => !own(patch) && context.fillRect(...cell(patch)));
    context.globalAlpha = 1;
    const group = owner.map((_, patch) => (own(patch) ? 1 : 0));
    const counts = (a, b) => group[a] === 1 || (b !== null && group[b] === 1);
    outline(context, cell, group, grid, "#000", 4 * thin, counts, true);
    outline(context, cell, group, grid, "#fff", 2 * thin, counts, true);
  }

  function redraw() {
    panes[1].root.hidden = panes[1].select.value === NOTHING;
    const picture = loaded(state.picture);
    if (!picture) return;
    const shown = panes.filter((pane) => pane.select.value !== NOTHING);
    const found = shown.map((pane) => [pane, drawPane(pane, picture)]);
    const described = found.filter(([pane]) => modelOf(pane));
    const named = ([pane, now]) => (described.length > 1 ? `${modelOf(pane).label} ${now.text}` : now.text);
    slider.setAttribute("aria-valuetext", described.map(named).join("; "));
    drawCounts();
    words.textContent = state.patch === null ? "" : described.map(([pane, now]) => sentence(pane, now)).join(" ");
  }

  /** A bar above each slider position: the share of tokens, or keys, that the first model has there. */
  function drawCounts() {
    const number = Number(slider.max) + 1;
    const bars = Array.from({ length: number }, (_, position) => {
      const { share } = held(panes[0], position);
      const now = position === Number(slider.value) ? "now" : "";
      return draw("rect", { class: now, x: position - 0.15, y: 1 - share, width: 0.3, height: share });
    });
    const counts = document.getElementById("counts");
    counts.setAttribute("viewBox", `0 0 ${number - 1} 1`);
    counts.replaceChildren(...bars);
  }

  function sentence(pane, { owner, overlaps }) {
    const number = membersOf(owner)(state.patch);
    const mates = `shares its token with ${number - 1} ${number === 2 ? "other" : "others"}`;
    const what = ["was dropped", "has a token of its own"][number] || mates;
    const [row, column] = [Math.floor(state.patch / gridOf(pane)[1]), state.patch % gridOf(pane)[1]];
    const most = overlaps ? " (of its several tokens, the one where its weight is largest)" : "";
    return `${modelOf(pane).label}: the patch in row ${row + 1}, column ${column + 1} ${what}${most}.`;
  }

  function lookAt(patch) {
    if (patch === state.patch) return;
    state.patch = patch;
    redraw();
  }

  function point(pane, event) {
    const [rows, columns] = gridOf(pane);
    const box = pane.canvas.getBoundingClientRect();
    const inside = (share, number) => Math.max(0, Math.min(number - 1, Math.floor(share * number)));
    const row = inside((event.clientY - box.top) / box.height, rows);
    lookAt(row * columns + inside((event.clientX - box.left) / box.width, columns));
  }

  function walk(pane, event) {
    const [rows, columns] = gridOf(pane);
    const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    if (event.key === "Escape") lookAt(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    if (state.patch === null) return lookAt(Math.floor(rows / 2) * columns + Math.floor(columns / 2));
    const [down, right] = moves[event.key];
    const row = Math.max(0, Math.min(rows - 1, Math.floor(state.patch / columns) + down));
    lookAt(row * columns + Math.max(0, Math.min(columns - 1, (state.patch % columns) + right)));
  }

  function makeThumbnails() {
    const names = gallery.pictures.map(({ name, label }) => (label ? `${name}, ${label}` : name));
    const buttons = gallery.pictures.map((picture, index) => {
      const name = names[index];
      const image = make("img", { src: picture.source, alt: "", width: 72, height: 72 });
      return make("button", { type: "button", title: name, "aria-label": name, onclick: () => show(index) }, image);
    });
    function show(index) {
      state.picture = index;
      state.patch = null;
      document.getElementById("picture-name").textContent = names[index];
      buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(place === index)));
      redraw();
    }
    document.getElementById("thumbnails").append(...buttons);
    document.getElementById("thumbnails").hidden = buttons.length < 2;
    return show;
  }

  function stop() {
    clearInterval(state.timer);
    state.timer = null;
    play.textContent = "Play";
  }

  function start() {
    if (slider.value === slider.max) slider.value = 0;
    play.textContent = "Pause";
    redraw();
    state.timer = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      redraw();
      if (slider.value === slider.max) stop();
    }, 650);
  }

  const bare = (name) => name.replace(" at ", " ");
  const placeOf = (entry) => gallery.models.findIndex((model) => bare(model.label) === bare(report.title(entry)));
  report.showsTokensOf = (entry) => placeOf(entry) >= 0;
  report.showTokensOf = (entry) => {
    panes[0].select.value = placeOf(entry);
    document.getElementById("tokens").scrollIntoView();
    panes[0].select.focus({ preventScroll: true });
    redraw();
  };

  const recommended = data.comparison.recommendation.entry;
  const first = recommended === null ? -1 : placeOf(data.comparison.entries[recommended]);
  panes[0].select.value = Math.max(0, first);
  panes[1].select.value = matchMedia("(min-width: 40rem)").matches ? PLAIN : NOTHING;
  slider.max = Math.max(...gallery.models.map((model) => model.blocks));
  slider.value = Math.round(Number(slider.max) * 0.75);
  slider.addEventListener("input", () => {
    if (state.timer) stop();
    redraw();
  });
  play.addEventListener("click", () => (state.timer ? stop() : start()));
  document.getElementById("tokens").hidden = false;
  makeThumbnails()(0);
  new ResizeObserver(redraw).observe(document.getElementById("panes"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();

report.startChart();
