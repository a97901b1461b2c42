// Rows of two listings side by side are as high as each other.

/** Gives the lines of two listings that stand side by side one height, since long ones take several rows. */
export function level(box: HTMLElement): void {
  const [a, b] = [...box.querySelectorAll(".lines")].map((lines) => [...lines.children] as HTMLElement[]);
  if (!a || !b || !box.offsetHeight) return;
  for (const row of [...a, ...b]) row.style.minHeight = "";
  const tall = (row: HTMLElement | undefined) => row?.getBoundingClientRect().height ?? 0;
  const heights = a.map((row, n) => [tall(row), tall(b[n])] as const);
  heights.forEach(([left, right], n) => {
    const low = left < right ? a[n] : left > right ? b[n] : undefined;
    if (low) low.style.minHeight = `${Math.max(left, right)}px`;
  });
}
