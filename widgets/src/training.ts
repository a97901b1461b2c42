// Both passes of an operator: choose a stage, read its text beside the picture, choose what is kept. Python makes the
// whole page, complete without script and with every name escaped (neptune_widgets/training/html.py); this adds what moves.

import type { Model } from "./app";
import { h } from "./dom";
import { hideStatic } from "./hide_static";
import { ownKeys } from "./own_keys";

type Messages = Pick<Model, "get" | "set" | "save_changes" | "send">;

const all = <T extends Element>(root: ParentNode, selector: string) => [...root.querySelectorAll<T & HTMLElement>(selector)];

/** Makes a page that Python wrote answer to pointer and keys; the model is null on a saved page. */
export function start(root: HTMLElement, model: Messages | null): { choose(stage: string): void; failed(text: string): void } {
  root.classList.add("js");
  ownKeys(root);
  const panel = root.querySelector<HTMLElement>(".shown")!;
  const empty = [...panel.childNodes];
  const card = panel.closest<HTMLElement>(".panel")!;
  const main = card.parentElement!;
  const picture = main.querySelector<HTMLElement>(".picture")!;
  const hint = h("div", { class: "panel", "aria-hidden": "true" }, h("div", {}, ...empty.map((node) => node.cloneNode(true))));
  const boxes = all<SVGGElement>(root, "[data-stage]");
  const lists = all<SVGGElement>(root, "[role=listbox]");
  const box = (stage: string) => boxes.find((b) => b.dataset.stage === stage);
  let chosen = "";

  function choose(stage: string, focus = false): void {
    const text = all(root, "details[data-text]").find((d) => d.dataset.text === stage);
    chosen = text ? stage : "";
    panel.replaceChildren(...(text ? shown(text) : empty));
    const linked = new Set(all(panel, "[data-to-stage]").map((b) => b.dataset.toStage));
    for (const b of boxes) {
      const mine = b.dataset.stage === chosen;
      b.setAttribute("aria-selected", String(mine));
      b.classList.toggle("related", !mine && linked.has(b.dataset.stage));
    }
    for (const list of lists) {
      const own = all(list, "[role=option]");
      const stop = own.find((b) => b.dataset.stage === chosen) ?? own.find((b) => b.tabIndex === 0) ?? own[0];
      for (const b of own) b.setAttribute("tabindex", b === stop ? "0" : "-1");
    }
    for (const line of all(root, "path[data-from]")) line.classList.toggle("lit", chosen !== "" && (line.dataset.from === chosen || line.dataset.to === chosen));
    place();
    if (focus) box(chosen)?.focus({ preventScroll: true });
    model?.set("view", { chosen });
    model?.save_changes();
  }
  /** The text stands at the height of its stage, since the picture may be higher than the window: beside the picture; if
   * there is no room, over it beside the stage; on a narrow page below or above the stage. */
  function place(): void {
    main.classList.remove("over");
    hint.remove();
    card.style.marginTop = card.style.top = card.style.left = "";
    const at = box(chosen);
    if (!at || !main.offsetWidth) return;
    const beside = card.offsetLeft > picture.offsetLeft;
    if (!beside) {
      main.prepend(hint); // the empty panel stays, so that the picture does not move
      main.classList.add("over");
    }
    const [stage, all] = [at.getBoundingClientRect(), main.getBoundingClientRect()];
    const level = Math.max(0, Math.min(stage.top - all.top - 12, all.height - card.offsetHeight));
    if (beside) return void (card.style.marginTop = `${level}px`);
    const right = stage.right - all.left + 14;
    const left = stage.left - all.left - 14 - card.offsetWidth;
    const room = right + card.offsetWidth <= all.width;
    const below = stage.bottom - all.top + 8;
    const over = below + card.offsetHeight <= all.height ? below : Math.max(0, stage.top - all.top - 8 - card.offsetHeight);
    card.style.left = `${room ? right : Math.max(0, left)}px`;
    card.style.top = `${room || left >= 0 ? level : over}px`;
  }
  function shown(text: HTMLElement): Node[] {
    const side = text.dataset.text!.startsWith("f:") ? "forward" : "backward";
    return [h("h4", {}, text.dataset.text!.slice(2), " ", h("small", {}, `${side} pass`)), ...[...text.lastElementChild!.childNodes].map((n) => n.cloneNode(true))];
  }

  root.addEventListener("click", (e) => {
    const at = (e.target as Element).closest<HTMLElement>("[data-stage], [data-to-stage], [data-keep-default], [data-region]");
    if (!at) {
      // Beside the stages: what covers the picture goes.
      if (main.classList.contains("over") && picture.contains(e.target as Node)) choose("");
      return;
    }
    const { stage, toStage, keepDefault, region } = at.dataset;
    if (stage !== undefined) choose(stage, true);
    else if (toStage !== undefined) {
      choose(toStage, true);
      box(toStage)?.scrollIntoView({ block: "nearest", inline: "nearest" });
    } else if (keepDefault !== undefined) keep(null);
    else if (region !== undefined && at.tagName === "BUTTON") model?.send({ kind: "open", side: region });
  });
  root.addEventListener("keydown", (e) => {
    const at = (e.target as Element).closest<HTMLElement>("[data-stage]");
    if (e.key === "Escape" && chosen) {
      choose("");
      (at ?? lists[0]?.querySelector<HTMLElement>("[tabindex='0']"))?.focus();
    }
    if (!at || e.ctrlKey || e.metaKey || e.altKey) return;
    const own = all(at.closest("[role=listbox]")!, "[role=option]");
    const n = own.indexOf(at);
    const sideways = e.key === "ArrowLeft" || e.key === "ArrowRight";
    const to = sideways ? across(at) : { ArrowDown: own[n + 1], ArrowUp: own[n - 1], Home: own[0], End: own[own.length - 1], Enter: at, " ": at }[e.key];
    if (!to) return;
    e.preventDefault();
    choose(to.dataset.stage!, true);
  });
  /** The first stage of the other pass that belongs to this one. */
  function across(at: HTMLElement): HTMLElement | undefined {
    if (at.dataset.stage !== chosen) choose(at.dataset.stage!);
    const side = chosen.slice(0, 2);
    const to = all(panel, "[data-to-stage]").find((b) => !b.dataset.toStage!.startsWith(side));
    return to && box(to.dataset.toStage!);
  }

  const ticks = all<HTMLInputElement>(root, "input[data-keep]") as unknown as HTMLInputElement[];
  const error = root.querySelector<HTMLElement>(".error")!;
  function keep(names: string[] | null): void {
    error.textContent = "";
    root.classList.add("busy");
    model?.send({ kind: "keep", keep: names });
  }
  for (const tick of ticks) tick.addEventListener("change", () => keep(ticks.filter((t) => t.checked).map((t) => t.dataset.keep!)));

  // On paper nothing can be pressed: the texts of all stages are printed.
  if (model === null) {
    const folded = () => [...root.querySelectorAll<HTMLDetailsElement>(".stages > details")];
    addEventListener("beforeprint", () => folded().forEach((d) => (d.open = true)));
    addEventListener("afterprint", () => folded().forEach((d) => (d.open = false)));
  }

  choose("");
  new ResizeObserver(place).observe(root);
  return {
    choose,
    failed(text) {
      root.classList.remove("busy");
      error.textContent = text;
      for (const tick of ticks) tick.checked = tick.defaultChecked;
    },
  };
}

export function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const place = h("div");
  let page: ReturnType<typeof start> | null = null;
  let text = "";

  function draw(): void {
    if (model.get("html") === text) return page?.failed("");
    const page_ = el.getRootNode() as Document | ShadowRoot;
    const focused = place.contains(page_.activeElement) ? (page_.activeElement as HTMLElement) : null;
    text = String(model.get("html"));
    const view = model.get("view") as { chosen?: unknown };
    place.innerHTML = text;
    page = start(place.querySelector<HTMLElement>(".nt")!, model);
    if (typeof view?.chosen === "string" && view.chosen) page.choose(view.chosen);
    const back = focused && all(place, "input[data-keep], [data-keep-default]").find((i) => i.dataset.keep === focused.dataset.keep);
    back?.focus({ preventScroll: true });
  }
  const onMessage = (message: { kind?: unknown; message?: unknown }) => {
    if (message?.kind === "failed") page?.failed(String(message.message));
    if (message?.kind === "kept") draw();
  };
  model.on("change:html", draw as never);
  model.on("msg:custom", onMessage as never);
  el.append(place);
  draw();
  const restore = hideStatic(place);
  return () => {
    model.off("change:html", draw as never);
    model.off("msg:custom", onMessage as never);
    restore();
    place.remove();
  };
}

export default { render, start };
