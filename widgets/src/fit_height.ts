// The height: in a box that scrolls, such as JupyterLab's notebook or marimo's output area, the whole widget can be in view.

/** The height that the nearest box around `el` gives it: one that scrolls, at a height that is not its content's. Over shadow roots. */
function roomIn(el: HTMLElement): { box: HTMLElement; room: () => number } | null {
  let node: Node | null = el.parentNode;
  while (node) {
    if (node instanceof ShadowRoot) node = node.host;
    if (node instanceof HTMLElement && node !== document.body && node !== document.documentElement) {
      const box = node;
      const { overflowY, maxHeight } = getComputedStyle(box);
      if (/^(auto|scroll)$/.test(overflowY)) {
        const limited = maxHeight.endsWith("px");
        if (limited || !growsWith(box, el)) {
          return {
            box,
            room: () => {
              const style = getComputedStyle(box);
              return (limited ? parseFloat(style.maxHeight) : box.clientHeight) - parseFloat(style.paddingTop) - parseFloat(style.paddingBottom);
            },
          };
        }
      }
    }
    node = node.parentNode;
  }
  return null;
}

/** Whether the box is higher if `el` is: tried, because no style says it. Growing keeps the place to which the box is scrolled. */
function growsWith(box: HTMLElement, el: HTMLElement): boolean {
  const before = box.clientHeight;
  const margin = el.style.marginBottom;
  el.style.marginBottom = "20px";
  const after = box.clientHeight;
  el.style.marginBottom = margin;
  return after !== before;
}

/** Makes `root`, which is in the page, at most as high as the box around it can show, and follows the box. Returns what ends that. */
export function fitHeight(root: HTMLElement): () => void {
  const found = roomIn(root);
  if (!found) return () => {};
  const fit = () => {
    const room = Math.floor(found.room()) - 4;
    if (room > 0) root.style.maxHeight = `${room}px`;
  };
  fit();
  const watch = new ResizeObserver(fit);
  watch.observe(found.box);
  return () => watch.disconnect();
}
