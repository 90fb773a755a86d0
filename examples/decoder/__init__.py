"""One decoder family for Llama 3, SmolLM2, Mistral and Qwen3, with paged attention as its splitting op."""

__all__: list[str] = []
