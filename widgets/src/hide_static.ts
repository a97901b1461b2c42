// A widget's view without script stands in an output of its own, for GitHub and for notebooks that are opened again.

/** The static view beside the widget, in an output of its own that may come later, is not needed while this runs. */
export function hideStatic(root: HTMLElement): () => void {
  const hidden: HTMLElement[] = [];
  let watch: MutationObserver | null = null;
  const start = () => {
    const area = root.closest(".jp-OutputArea");
    if (!area || watch) return;
    const hide = () => {
      for (const s of area.querySelectorAll<HTMLElement>(".neptune-static")) {
        const output = s.closest<HTMLElement>(".jp-OutputArea-child") ?? s;
        if (output.contains(root) || output.style.display === "none") continue;
        output.style.display = "none";
        hidden.push(output);
      }
    };
    hide();
    watch = new MutationObserver(hide);
    watch.observe(area, { childList: true, subtree: true });
    // The second output comes at once or never.
    setTimeout(() => watch?.disconnect(), 10_000);
  };
  start();
  // A widget may be drawn before it is put into the page.
  requestAnimationFrame(start);
  const later = setTimeout(start, 500);
  return () => {
    clearTimeout(later);
    watch?.disconnect();
    for (const s of hidden) s.style.display = "";
  };
}
