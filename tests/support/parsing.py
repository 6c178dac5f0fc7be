"""Python's sources as trees."""

from __future__ import annotations

import ast
import gc


def parsed(source: str) -> ast.Module:
    """Parse without a garbage collection. A finalizer that ran amid it would let another thread parse, too, and Python
    3.11 then fails with a SystemError ('AST constructor recursion depth mismatch').
    """
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()
