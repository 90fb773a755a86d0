"""The cache: key factors, manifests, the store, lookups and pruning.

This package never imports torch. Names are imported on first use, so that commands that only look at the store start
fast. The functions `lookup` and `explain` are only in their modules, which have the same names.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from precast.cache.canonical import Json, canonical_json, decode_json, digest, sha256
    from precast.cache.counters import LookupStats, lookup_stats, record_lookup, zero_stats
    from precast.cache.diff import Change, Diff, LineChange, Side, diff_sides
    from precast.cache.environment import environment_factors, ignored_variables, variable_factor
    from precast.cache.explain import Explanation
    from precast.cache.factors import GROUPS, REGISTER, Factor, FactorRule, entry_key, group_digests
    from precast.cache.index import Near, SummaryRow, nearest, summaries
    from precast.cache.lookup import Lookup, MissReason, Request
    from precast.cache.manifest import (
        BuildRecord,
        ConstantRecord,
        Manifest,
        MegaRecord,
        ModelRecord,
        PayloadRecord,
        SettingRecord,
        SourcesRecord,
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
    from precast.cache.side import open_side
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
    from precast.cache.vllm import VllmEntry, is_vllm_root, read_vllm_factors, vllm_entries

__all__ = [
    "BuildRecord",
    "CacheRoot",
    "Change",
    "ConstantRecord",
    "Damage",
    "Diff",
    "DistributionContent",
    "EntrySummary",
    "Explanation",
    "Factor",
    "FactorRule",
    "GROUPS",
    "Json",
    "KeptEntry",
    "LineChange",
    "Lookup",
    "LookupStats",
    "Manifest",
    "MegaFile",
    "MegaRecord",
    "MissReason",
    "ModelRecord",
    "Near",
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
    "Side",
    "SkippedItem",
    "SourceFile",
    "SourcesRecord",
    "Store",
    "StoredObject",
    "SummaryRow",
    "UnwritableFolder",
    "VllmEntry",
    "all_tags",
    "candidates",
    "canonical_json",
    "decode_json",
    "diff_sides",
    "digest",
    "distribution_content",
    "entry_key",
    "environment_factors",
    "execute",
    "format_age",
    "format_size",
    "group_digests",
    "hash_source",
    "ignored_variables",
    "is_vllm_root",
    "locate_data",
    "locate_source",
    "lookup_stats",
    "nearest",
    "open_side",
    "parse_age",
    "parse_size",
    "plan_prune",
    "read_mega_manifest",
    "read_vllm_factors",
    "record_lookup",
    "remember",
    "remembered",
    "remembered_hint",
    "resolve_root",
    "set_tag",
    "sha256",
    "summaries",
    "variable_factor",
    "vllm_entries",
    "write_mega",
    "zero_stats",
]

_HOMES = {
    "precast.cache.canonical": ("Json", "canonical_json", "decode_json", "digest", "sha256"),
    "precast.cache.counters": ("LookupStats", "lookup_stats", "record_lookup", "zero_stats"),
    "precast.cache.diff": ("Change", "Diff", "LineChange", "Side", "diff_sides"),
    "precast.cache.environment": ("environment_factors", "ignored_variables", "variable_factor"),
    "precast.cache.explain": ("Explanation",),
    "precast.cache.factors": ("Factor", "FactorRule", "GROUPS", "REGISTER", "entry_key", "group_digests"),
    "precast.cache.index": ("Near", "SummaryRow", "nearest", "summaries"),
    "precast.cache.lookup": ("Lookup", "MissReason", "Request"),
    "precast.cache.manifest": (
        "BuildRecord",
        "ConstantRecord",
        "Manifest",
        "MegaRecord",
        "ModelRecord",
        "PayloadRecord",
        "SettingRecord",
        "SourcesRecord",
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
    "precast.cache.side": ("open_side",),
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
    "precast.cache.vllm": ("VllmEntry", "is_vllm_root", "read_vllm_factors", "vllm_entries"),
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'precast.cache' has no attribute {name!r}")
