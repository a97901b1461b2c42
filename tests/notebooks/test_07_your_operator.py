"""Your own operator: variants, definitions, exports, and wrong repairs, as the prose tells them."""

from __future__ import annotations

from notebook_checks import EveryNotebook


class TestYourOperator(EveryNotebook):
    name = "07_your_operator"
