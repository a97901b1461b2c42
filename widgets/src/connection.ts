// Whether Python still answers. A kernel that was restarted knows nothing of the widgets that it had.

export type Connection = "alive" | "silent" | "lost";

/** What of a model tells. */
interface Wire {
  send(content: unknown): void;
  on(name: string, f: () => void): void;
  off(name: string, f: () => void): void;
}

/** Milliseconds until an unanswered message is worth a word. */
const PATIENCE = 15_000;
/** What a model tells in Jupyter when its kernel is restarted, or there again; not which of the two. */
const EVENT = "comm_live_update";
const PING = { kind: "ping", seq: -2 };

export interface Watch {
  state(): Connection;
  /** Sends a message; false if it cannot leave. */
  send(content: { kind: string; seq: number }): boolean;
  /** An answer to message `seq` came. */
  heard(seq: number): void;
  destroy(): void;
}

/** Watches the connection of a model; `changed` is called when `state` has changed. */
export function watchConnection(model: Wire, changed: () => void, patience = PATIENCE): Watch {
  let now: Connection = "alive";
  const waiting = new Map<number, ReturnType<typeof setTimeout>>();
  const set = (next: Connection) => {
    if (next === now) return;
    now = next;
    changed();
  };
  const forget = (seq: number) => {
    clearTimeout(waiting.get(seq));
    waiting.delete(seq);
  };
  const tell = (content: unknown): boolean => {
    try {
      model.send(content);
      return true;
    } catch {
      set("lost"); // Jupyter's comm is closed
      return false;
    }
  };
  // Lost, unless Python answers.
  const look = () => {
    set("lost");
    tell(PING);
  };
  model.on(EVENT, look);
  return {
    state: () => now,
    send(content) {
      if (now === "lost" || !tell(content)) return false;
      // A cancel has no answer of its own.
      if (content.kind !== "cancel") waiting.set(content.seq, setTimeout(() => { if (now === "alive") set("silent"); }, patience));
      return true;
    },
    heard(seq) {
      forget(seq);
      set("alive");
    },
    destroy() {
      model.off(EVENT, look);
      for (const seq of [...waiting.keys()]) forget(seq);
    },
  };
}
