// The height: a box that scrolls around the widget, as marimo's output area, would scroll in a page that scrolls already.

/** The nearest box around `el` that scrolls at a height of its own; over shadow roots. */
function scrollBox(el: HTMLElement): HTMLElement | null {
  let node: Node | null = el.parentNode;
  while (node) {
    if (node instanceof ShadowRoot) node = node.host;
    if (node instanceof HTMLElement && node !== document.body && node !== document.documentElement) {
      const { overflowY, maxHeight } = getComputedStyle(node);
      if (/^(auto|scroll)$/.test(overflowY) && maxHeight.endsWith("px")) return node;
    }
    node = node.parentNode;
  }
  return null;
}

/** Makes `root` as high as the box around it can show, once it is in the page. */
export function fitHeight(root: HTMLElement): void {
  const box = scrollBox(root);
  if (!box) return;
  const { maxHeight, paddingTop, paddingBottom } = getComputedStyle(box);
  const room = parseFloat(maxHeight) - parseFloat(paddingTop) - parseFloat(paddingBottom) - 4;
  root.style.maxHeight = `${Math.floor(room)}px`;
}
