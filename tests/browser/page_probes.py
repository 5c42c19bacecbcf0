"""Small scripts that run inside the page and tell what a reader would see."""

# every visible text with the contrast of its colour to what is behind it, as the accessibility guidelines count it
CONTRAST = """() => {
  const channel = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = numbers(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
  };
  const own = (e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  const all = [...document.body.querySelectorAll("*")];
  return all.filter((e) => own(e) && e.checkVisibility() && !e.closest("script")).map((e) => {
    const style = getComputedStyle(e);
    const pair = [light(numbers(e.ownerSVGElement ? style.fill : style.color)), light(behind(e))];
    const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    return [ratio, `${e.tagName} ${e.className} ${e.textContent.trim().slice(0, 40)}`];
  });
}"""

# visible controls that a screen reader could not name
NAMELESS = """() => {
  const all = [...document.querySelectorAll("button, select, input, canvas, [tabindex]")];
  const named = (e) => e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.textContent.trim();
  return all.filter((e) => e.checkVisibility() && !named(e) && !e.labels?.length).map((e) => e.outerHTML.slice(0, 80));
}"""

# the colour in the middle of each patch of a token map
PATCH_COLOURS = """([pane, rows, columns]) => {
  const canvas = document.querySelectorAll("#panes canvas")[pane];
  const context = canvas.getContext("2d");
  return Array.from({ length: rows * columns }, (_, patch) => {
    const x = ((patch % columns) + 0.5) * canvas.width / columns;
    const y = (Math.floor(patch / columns) + 0.5) * canvas.height / rows;
    return [...context.getImageData(x, y, 1, 1).data];
  });
}"""

# tries to fetch a picture: which rule of the policy forbade it, or that it was asked for
FETCH = """() => new Promise((resolve) => {
  document.addEventListener("securitypolicyviolation", (event) => resolve(event.violatedDirective));
  const image = document.createElement("img");
  image.onerror = () => setTimeout(() => resolve("asked for"), 100); // a blocked image errs too, a little earlier
  image.src = "http://127.0.0.1:9/x.png";
})"""
