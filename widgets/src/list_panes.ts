// The panes and keys as data, which the build writes to panes.json for the documentation.

import { KEYS, MORE } from "./keys";
import { PANES } from "./registry";

export const LIST = {
  panes: PANES.map(({ id, title, help }) => ({ id, title, help })),
  keys: [...KEYS, ...MORE].map(({ keys, text, explained }) => ({ keys, text: explained ?? text })),
};
