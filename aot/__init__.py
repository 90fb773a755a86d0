"""Ahead-of-time compilation: spec, settings, the one trace, payloads, loading, verify.

Modules are imported by name. Those that a lookup needs (`settings`, `reference`, `request`, `target`, `precompile`)
never import torch; `load` imports torch alone.
"""

__all__ = ["load", "precompile", "settings", "spec", "verify"]
