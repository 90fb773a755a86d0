"""Batch limits: what a serving process will ever put into one step. Sizes, candidates and coverage follow from them."""

from dataclasses import dataclass

from precast.errors import ConfigValueError

__all__ = ["BatchLimits", "DraftTier", "LoraLimits"]


@dataclass(frozen=True, slots=True)
class DraftTier:
    """One step of a dynamic draft schedule.

    Attributes:
        max_reqs: Widest batch, in requests, that gets this many drafts.
        drafts: Draft tokens of each request.
    """

    max_reqs: int
    drafts: int


@dataclass(frozen=True, slots=True)
class LoraLimits:
    """LoRA adapters.

    Attributes:
        max_loras: Most adapters active at a time; 0 without LoRA.
        specialize: Capture graphs without LoRA besides those with it.
        specialize_active: Capture graphs by the number of active adapters: powers of two, and one more than the most.
    """

    max_loras: int = 0
    specialize: bool = True
    specialize_active: bool = False

    def __post_init__(self) -> None:
        """Refuse a negative number of adapters.

        Raises:
            ConfigValueError: `max_loras` is below 0.
        """
        if self.max_loras < 0:
            raise ConfigValueError(f"`max_loras` cannot be {self.max_loras}", "it is at least 0", "give 0 for none")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of a batch.

    Attributes:
        max_num_batched_tokens: Most tokens of a step.
        max_num_seqs: Most requests of a step.
        drafts: Draft tokens that each request of a decode step brings besides its own; the decode query length is one
            more.
        draft_schedule: Fewer drafts for wider batches; empty for the same number always. A batch wider than every tier
            brings no drafts.
        adaptive_verification: Requests of a decode step may bring from one token to the decode query length.
        lora: LoRA adapters.
        num_ubatches: Microbatches that a decode step may be split into; 1 for none.
        ubatch_decode_tokens: Fewest tokens of a decode step that is split.
    """

    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    drafts: int = 0
    draft_schedule: tuple[DraftTier, ...] = ()
    adaptive_verification: bool = False
    lora: LoraLimits = LoraLimits()
    num_ubatches: int = 1
    ubatch_decode_tokens: int = 32

    def __post_init__(self) -> None:
        """Refuse numbers that no batch can have.

        Raises:
            ConfigValueError: A count is too small; the error names it.
        """
        least = {"max_num_batched_tokens": 1, "max_num_seqs": 1, "drafts": 0, "num_ubatches": 1}
        for name, smallest in least.items():
            value = getattr(self, name)
            if value < smallest:
                hint = f"give a number from {smallest}"
                raise ConfigValueError(f"`{name}` cannot be {value}", f"it is at least {smallest}", hint)
        self._check_schedule()

    def _check_schedule(self) -> None:
        """Refuse a schedule that no batch can follow; vllm-behaviour.md step 7 silently takes one tier instead."""
        widths = [tier.max_reqs for tier in self.draft_schedule]
        for tier in self.draft_schedule:
            if tier.max_reqs < 1 or not 0 <= tier.drafts <= self.drafts:
                raise ConfigValueError(
                    f"`draft_schedule` cannot hold {tier.drafts} drafts up to {tier.max_reqs} requests",
                    f"a tier has at least 1 request and from 0 to {self.drafts} drafts (`drafts`)",
                    "change that tier, or raise drafts",
                )
            if widths.count(tier.max_reqs) > 1:
                raise ConfigValueError(
                    f"`draft_schedule` has two tiers up to {tier.max_reqs} requests",
                    "such a batch would have two numbers of drafts",
                    "leave one of them out",
                )

    @property
    def decode_query_len(self) -> int:
        """Tokens that each request brings to a decode step: its own and its drafts."""
        return 1 + self.drafts

    def drafts_of(self, num_reqs: int) -> int:
        """Return the drafts that each request of a decode step of so many requests brings."""
        if not self.draft_schedule:
            return self.drafts
        fitting = [tier for tier in self.draft_schedule if tier.max_reqs >= num_reqs]
        return min(fitting, key=lambda tier: tier.max_reqs).drafts if fitting else 0

    @property
    def decode_tiers(self) -> tuple[tuple[int, int], ...]:
        """Each query length that a decode step may have, ascending, with the widest batch in requests that has it."""
        ends = {min(tier.max_reqs, self.max_num_seqs) for tier in self.draft_schedule}
        widest = {1 + self.drafts_of(reqs): reqs for reqs in sorted({*ends, self.max_num_seqs})}
        return tuple(sorted(widest.items()))
