"""The cache: key factors, manifests, the store, lookups and pruning.

This room never imports torch. Names are imported on first use, so that commands that only look at the store start
fast. The function `lookup` is only in its module, which has the same name.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precast.cache.canonical import Json, canonical_json, decode_json, digest, sha256
    from precast.cache.environment import environment_factors, variable_factor
    from precast.cache.factors import GROUPS, REGISTER, Factor, FactorRule, entry_key, group_digests
    from precast.cache.lookup import Lookup, MissReason, Request
    from precast.cache.manifest import (
        BuildRecord,
        ConstantRecord,
        Manifest,
        MegaRecord,
        ModelRecord,
        PayloadRecord,
        SettingRecord,
    )
    from precast.cache.mega import MegaFile, read_mega_manifest, write_mega
    from precast.cache.prune import (
        KeptEntry,
        PruneItem,
        PrunePlan,
        PruneRules,
        PruneSummary,
        SkippedItem,
        execute,
        plan_prune,
    )
    from precast.cache.requests import Remembered, candidates, remember, remembered, remembered_hint
    from precast.cache.root import CacheRoot, RootChoice, resolve_root
    from precast.cache.sizes import format_age, format_size, parse_age, parse_size
    from precast.cache.sources import (
        DistributionContent,
        SourceFile,
        distribution_content,
        hash_source,
        locate_data,
        locate_source,
    )
    from precast.cache.store import Damage, EntrySummary, Store, StoredObject, UnwritableFolder
    from precast.cache.tags import all_tags, set_tag

__all__ = [
    "BuildRecord",
    "CacheRoot",
    "ConstantRecord",
    "Damage",
    "DistributionContent",
    "EntrySummary",
    "Factor",
    "FactorRule",
    "GROUPS",
    "Json",
    "KeptEntry",
    "Lookup",
    "Manifest",
    "MegaFile",
    "MegaRecord",
    "MissReason",
    "ModelRecord",
    "PayloadRecord",
    "PruneItem",
    "PrunePlan",
    "PruneRules",
    "PruneSummary",
    "REGISTER",
    "Remembered",
    "Request",
    "RootChoice",
    "SettingRecord",
    "SkippedItem",
    "SourceFile",
    "Store",
    "StoredObject",
    "UnwritableFolder",
    "all_tags",
    "candidates",
    "canonical_json",
    "decode_json",
    "digest",
    "distribution_content",
    "entry_key",
    "environment_factors",
    "execute",
    "format_age",
    "format_size",
    "group_digests",
    "hash_source",
    "locate_data",
    "locate_source",
    "parse_age",
    "parse_size",
    "plan_prune",
    "read_mega_manifest",
    "remember",
    "remembered",
    "remembered_hint",
    "resolve_root",
    "set_tag",
    "sha256",
    "variable_factor",
    "write_mega",
]

_HOMES = {
    "precast.cache.canonical": ("Json", "canonical_json", "decode_json", "digest", "sha256"),
    "precast.cache.environment": ("environment_factors", "variable_factor"),
    "precast.cache.factors": ("Factor", "FactorRule", "GROUPS", "REGISTER", "entry_key", "group_digests"),
    "precast.cache.lookup": ("Lookup", "MissReason", "Request"),
    "precast.cache.manifest": (
        "BuildRecord",
        "ConstantRecord",
        "Manifest",
        "MegaRecord",
        "ModelRecord",
        "PayloadRecord",
        "SettingRecord",
    ),
    "precast.cache.mega": ("MegaFile", "read_mega_manifest", "write_mega"),
    "precast.cache.prune": (
        "KeptEntry",
        "PruneItem",
        "PrunePlan",
        "PruneRules",
        "PruneSummary",
        "SkippedItem",
        "execute",
        "plan_prune",
    ),
    "precast.cache.requests": ("Remembered", "candidates", "remember", "remembered", "remembered_hint"),
    "precast.cache.root": ("CacheRoot", "RootChoice", "resolve_root"),
    "precast.cache.sizes": ("format_age", "format_size", "parse_age", "parse_size"),
    "precast.cache.sources": (
        "DistributionContent",
        "SourceFile",
        "distribution_content",
        "hash_source",
        "locate_data",
        "locate_source",
    ),
    "precast.cache.store": ("Damage", "EntrySummary", "Store", "StoredObject", "UnwritableFolder"),
    "precast.cache.tags": ("all_tags", "set_tag"),
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'precast.cache' has no attribute {name!r}")
