"""What is said of an attack: one row of the campaign's table."""

from dataclasses import dataclass, field

from bottlegan.core.progress import Json


@dataclass(frozen=True)
class Row:
    """One attack, and how it went."""

    kind: str
    attack: str
    held: bool
    """Whether the federation did what it promises."""
    result: str
    """In a few words."""
    figures: dict[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """Return the row as a file of figures holds it."""
        said: dict[str, Json] = {"kind": self.kind, "attack": self.attack, "held": self.held, "result": self.result}
        return said | self.figures
