// Which groups of a graph are unfolded, as the view keeps it: from step to step, saved and shared.

import type { Group, Groups } from "./graph_groups";

/** Nodes from which on a graph is shown in groups that are folded at first. */
export const FOLDED_FROM = 32;
/** Nodes from which on a graph can be folded. */
export const FOLDABLE_FROM = 12;

/** The unfolded groups; null: the graph is shown flat, with every node at its own place. */
export function unfoldedOf(chosen: string | undefined, groups: Groups, nodes: number): ReadonlySet<string> | null {
  if (nodes < FOLDABLE_FROM) return null;
  const all = chosen === "all" || (chosen === undefined && nodes <= FOLDED_FROM);
  if (all) return nodes <= FOLDED_FROM ? null : new Set(groups.all.keys());
  return new Set((chosen ?? "").split(" ").filter((id) => groups.all.has(id)));
}

/** How the view writes a choice down. */
export const written = (unfolded: ReadonlySet<string>): string => [...unfolded].join(" ") || "none";

/** The choice with a group unfolded or folded; what a folded group contains is folded, too. */
export function toggled(unfolded: ReadonlySet<string>, group: Group): Set<string> {
  if (!unfolded.has(group.id)) return new Set([...unfolded, group.id]);
  return new Set([...unfolded].filter((id) => id !== group.id && !id.startsWith(`${group.id}/`)));
}

/** The choice with all groups unfolded that these nodes are in. */
export function shownWith(unfolded: ReadonlySet<string>, groups: Groups, nodes: Iterable<string>): Set<string> {
  const made = new Set(unfolded);
  for (const id of nodes) for (let g = groups.of.get(id) ?? null; g; g = g.parent) made.add(g.id);
  return made;
}
