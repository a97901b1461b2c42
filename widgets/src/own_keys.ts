// Which keys stay in the widget. A notebook has keys of its own: in JupyterLab, X cuts a cell and an arrow leaves it.

/** Whether what has the focus takes text, so that every key is meant for it. */
export const takesText = (target: Element): boolean =>
  target.matches?.("input:not([type=checkbox], [type=radio], [type=range]), textarea, select, [contenteditable=true]") || Boolean(target.closest?.(".cm-editor"));

const SLIDES = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown"]);

/** Whether a key moves the slider that has the focus, so that it may do nothing else. */
export const slides = (target: Element, key: string): boolean => SLIDES.has(key) && Boolean(target.matches?.("input[type=range]"));

/** Whether the page around may not hear of a key: every plain one, and while text is typed every one but "save". */
export function staysHere(e: KeyboardEvent): boolean {
  const command = e.ctrlKey || e.metaKey;
  if (!command && !e.altKey) return true;
  const save = command && !e.altKey && e.key.toLowerCase() === "s";
  return takesText(e.composedPath()[0] as Element) && !save;
}

/** Keeps from the page around what is pressed in `root`. */
export function ownKeys(root: HTMLElement): void {
  root.addEventListener("keydown", (e) => {
    if (staysHere(e)) e.stopPropagation();
  });
}
