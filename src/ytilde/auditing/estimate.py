"""A number that comes with its interval."""

from __future__ import annotations


class Estimate(float):
    """A number with a 95 % interval."""

    low: float
    high: float

    def __new__(cls, value: float, low: float, high: float) -> Estimate:
        self = super().__new__(cls, value)
        self.low, self.high = float(low), float(high)
        return self

    def __getnewargs__(self) -> tuple[float, float, float]:  # type: ignore[override]
        return float(self), self.low, self.high

    def __repr__(self) -> str:
        return f"{float(self):.4g} [{self.low:.4g}, {self.high:.4g}]"
