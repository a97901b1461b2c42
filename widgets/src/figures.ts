// Figures as files: a drawing of the page with its colours and fonts written into it, as SVG and as PNG.

import { download, h, svg } from "./dom";

/** A drawing with its size in the file, and a title to stand above it. */
export interface Drawing {
  el: SVGSVGElement;
  width: number;
  height: number;
  title?: string;
}

/** What is saved: drawings side by side, on paper of the page's colour. */
export interface Figure {
  name: string;
  drawings: readonly Drawing[];
}

/** What style sheets say of a drawing, since a file has none of them. */
const PROPERTIES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "font", "text-anchor", "opacity", "paint-order", "stroke-linejoin"];
const LINE = 15;
/** Letters of a title that fit over a drawing. */
const LONG = 40;
const GAP = 16;

/** A colour as every reader of SVG knows it: browsers write mixed colours as `color(srgb r g b / a)`. */
export function plainColor(value: string): string {
  return value.replace(/color\(srgb ([\d.e-]+) ([\d.e-]+) ([\d.e-]+)(?: \/ ([\d.e-]+))?\)/g, (_, r: string, g: string, b: string, a?: string) => {
    const parts = [r, g, b].map((x) => Math.round(255 * Math.min(Math.max(Number(x), 0), 1)));
    return a === undefined ? `rgb(${parts.join(", ")})` : `rgba(${parts.join(", ")}, ${Number(a)})`;
  });
}

/** A copy of a drawing that needs no style sheet; what is only for readers of the page is left out. */
function standalone({ el, width, height }: Drawing): SVGSVGElement {
  const copy = el.cloneNode(true) as SVGSVGElement;
  const here = [el, ...el.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((to, n) => {
    const style = getComputedStyle(here[n]!);
    if (style.display === "none") to.setAttribute("display", "none");
    to.setAttribute("style", PROPERTIES.map((p) => `${p}:${plainColor(style.getPropertyValue(p))}`).join(";"));
    for (const name of ["tabindex", "class"]) to.removeAttribute(name);
  });
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  return copy;
}

/** A title in lines that are not too long, broken between words. */
export function titleLines(title: string): string[] {
  const lines: string[] = [];
  for (const word of title.split(" ").filter(Boolean)) {
    const last = lines.length - 1;
    if (last >= 0 && lines[last]!.length + 1 + word.length <= LONG) lines[last] += ` ${word}`;
    else lines.push(word);
  }
  return lines;
}

/** The text of an SVG file. */
export function figureText(drawings: readonly Drawing[], around: Element): string {
  const style = getComputedStyle(around);
  const titles = drawings.map((d) => titleLines(d.title ?? ""));
  const most = Math.max(...titles.map((lines) => lines.length));
  const top = most ? most * LINE + 7 : 0;
  const width = drawings.reduce((x, d) => x + d.width, GAP * (drawings.length - 1));
  const height = top + Math.max(...drawings.map((d) => d.height));
  const whole = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, svg("rect", { width, height, style: `fill:${plainColor(style.backgroundColor)}` }));
  whole.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  let x = 0;
  drawings.forEach((drawing, n) => {
    const copy = standalone(drawing);
    copy.setAttribute("x", String(x));
    copy.setAttribute("y", String(top));
    titles[n]!.forEach((line, k) => whole.append(svg("text", { x: x + 8, y: LINE * (k + 1), style: `font:600 12px ${style.fontFamily};fill:${plainColor(style.color)}` }, line)));
    whole.append(copy);
    x += drawing.width + GAP;
  });
  return new XMLSerializer().serializeToString(whole);
}

function save(kind: "svg" | "png", figure: Figure, around: Element): void {
  const name = figure.name.replace(/[^\w.-]+/g, "-");
  const text = figureText(figure.drawings, around);
  if (kind === "svg") return download(`${name}.svg`, text, "image/svg+xml");
  const image = new Image();
  image.onload = () => {
    const canvas = h("canvas", { width: image.naturalWidth * 2, height: image.naturalHeight * 2 });
    canvas.getContext("2d")!.drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => blob && download(`${name}.png`, blob, "image/png"));
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

/** Two buttons that save a figure. `what` names it, such as "the graph"; `use` is called with a function that takes the
figure, so that a pane can draw all of it first; `around` has the colours of the page. */
export function figureButtons(what: string, around: () => Element, use: (take: (figure: Figure) => void) => void): HTMLElement {
  const button = (kind: "svg" | "png") => {
    const title = `download ${what} as ${kind.toUpperCase()}`;
    return h("button", { type: "button", class: "small", title, "aria-label": title, onclick: () => use((figure) => save(kind, figure, around())) }, kind.toUpperCase());
  };
  return h("span", { class: "tools" }, button("svg"), button("png"));
}
