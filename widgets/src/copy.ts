// Text to the clipboard.

import type { Context } from "./context";
import { h } from "./dom";

export async function copyText(ctx: Context, text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without permission: a selected text area, as before there was a clipboard.
    const area = h("textarea", { class: "vh" });
    area.value = text;
    ctx.root.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
