// What every pane sees: the record, the view, and ways to change the one and to ask Python.

import type { Connection } from "./connection";
import type { Index, Related } from "./links";
import type { Doc, Payload, Stop } from "./record";
import type { TagStore } from "./tagstore";
import type { Action, View } from "./state";
import type { Editing } from "./status";

export interface Message {
  kind: string;
  seq: number;
  [key: string]: unknown;
}
export interface Context {
  payload: Payload;
  doc: Doc;
  index: Index;
  view: View;
  stop: Stop;
  related: Related;
  /** Where the last selection was made: that pane does not scroll. */
  source: string;
  uid: string;
  /** Whether there is Python to edit, check and time with. */
  live: boolean;
  connection: Connection;
  /** What the schedule's editor does; set with `setEditing`. */
  editing: Editing;
  tags: TagStore;
  dispatch(action: Action, source?: string): void;
  /** What was shown before: whether there is some, and back to it. */
  past: { undoable(): boolean; redoable(): boolean; undo(): void; redo(): void };
  /** Sends a message; its number. 0 where Python is not there. */
  send(message: { kind: string; [key: string]: unknown }): number;
  setEditing(now: Editing): void;
  onAnswer(f: (message: Message) => void): void;
  setPayload(payload: unknown): void;
  announce(text: string): void;
  /** Draws again whatever changed besides the view. */
  refresh(): void;
  root: HTMLElement;
}
export interface Pane {
  el: HTMLElement;
  /** Of a tab: buttons beside the tabs while it is shown. */
  tools?: HTMLElement;
  update(): void;
  destroy?(): void;
}
