// The slot that the graph, the schedule editor and the timing share.

import type { Context, Pane } from "../context";
import { h } from "../dom";
import { tabs } from "../tabs";
import { graphView } from "./graph";
import { scheduleView } from "./schedule";
import { timingView } from "./timing";

export function upperPane(ctx: Context): Pane {
  const bar = tabs(ctx, "graph", "Graph, schedule and timing", [
    { id: "graph", label: "Graph" },
    { id: "schedule", label: "Schedule" },
    { id: "timing", label: "Timing" },
  ]);
  const graph = graphView(ctx);
  const schedule = scheduleView(ctx);
  const timing = timingView(ctx);
  const views = { graph, schedule, timing };
  const body = h("div", { class: "body", role: "tabpanel" });
  const el = h("section", { class: "pane", "aria-label": "graph, schedule and timing" }, bar.el, body);
  return {
    el,
    destroy: () => schedule.destroy(),
    update() {
      const { view, payload } = ctx;
      bar.show("schedule", payload.editor !== null);
      bar.show("timing", payload.live);
      bar.el.querySelector(".strip")!.toggleAttribute("data-one", !payload.editor && !payload.live);
      const wanted = view.panes.graph as keyof typeof views;
      const now = (wanted === "schedule" && payload.editor) || (wanted === "timing" && payload.live) ? wanted : "graph";
      bar.update(now);
      const shown = views[now];
      if (body.firstChild !== shown.el) {
        body.replaceChildren(shown.el);
        bar.extra.replaceChildren(shown.tools);
      }
      shown.update();
      if (now !== "schedule") schedule.update();
    },
  };
}
