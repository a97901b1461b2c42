"""Python runs this as it starts: processes that tests start look for garbage rarely.

A sixth of the time of importing torch and TVM went to looking through what they leave in memory for good.
"""

import gc

gc.set_threshold(100_000, 50, 100)
