// Elements in one line, text only as text nodes.

type Value = string | number | boolean | null | undefined | EventListener;
export type Attributes = Record<string, Value>;
export type Child = Node | string | null | undefined | false;

function fill<T extends Element>(el: T, attributes: Attributes, children: Child[]): T {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") el.addEventListener(name.slice(2), value);
    else el.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child !== null && child !== undefined && child !== false) el.append(child);
  return el;
}

export const h = <K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): HTMLElementTagNameMap[K] =>
  fill(document.createElement(tag), attributes, children);

export const svg = <K extends keyof SVGElementTagNameMap>(tag: K, attributes: Attributes = {}, ...children: Child[]): SVGElementTagNameMap[K] =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/** A text whose parts between backticks are elements of their own. */
export const ticked = (text: string, tag: "code" | "kbd"): (string | HTMLElement)[] => text.split("`").map((part, n) => (n % 2 ? h(tag, {}, part) : part));

export function download(name: string, text: BlobPart, type: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const a = h("a", { href: url, download: name });
  a.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Runs `f` once, `wait` milliseconds after the last call. */
export function debounce<A extends unknown[]>(f: (...args: A) => void, wait: number): ((...args: A) => void) & { cancel(): void; flush(): void } {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let last: A | null = null;
  const run = () => {
    timer = undefined;
    const args = last!;
    last = null;
    f(...args);
  };
  const call = (...args: A) => {
    last = args;
    clearTimeout(timer);
    timer = setTimeout(run, wait);
  };
  return Object.assign(call, {
    cancel: () => (clearTimeout(timer), (timer = undefined), (last = null), undefined),
    flush: () => {
      if (timer !== undefined) (clearTimeout(timer), run());
    },
  });
}

/** Scrolls only `box` so that `el` can be seen, never the page around. */
export function reveal(box: HTMLElement, el: Element, margin = 24): void {
  const b = box.getBoundingClientRect();
  const e = el.getBoundingClientRect();
  if (!b.height || !b.width) return;
  if (e.top < b.top + margin / 2) box.scrollTop += e.top - b.top - margin;
  else if (e.bottom > b.bottom - margin / 2) box.scrollTop += e.bottom - b.bottom + margin;
}
