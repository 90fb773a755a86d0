"""Every private torch name that precast uses, one function a seam.

Each function names the torch versions it was tried on. When torch moves one of these, the function raises a named
error; it never guesses. Nothing here is imported before a model is traced, compiled or loaded.
"""

__all__ = [
    "aoti",
    "caches",
    "capture",
    "described",
    "described_aoti",
    "described_facts",
    "export",
    "graphs",
    "in_memory",
    "inductor",
    "kernels",
    "ops",
    "parameters",
    "passes",
    "triton",
    "tuning",
    "twins",
    "watch",
]
