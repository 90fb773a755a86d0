"""Real models and a real decode loop, written against precast's public interface."""

__all__: list[str] = []
