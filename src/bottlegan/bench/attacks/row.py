"""One row of the campaign's table."""

from dataclasses import dataclass, field

from bottlegan.core.progress import Json


@dataclass(frozen=True)
class Row:
    """One attack and its result."""

    kind: str
    attack: str
    held: bool
    """Whether the federation kept its promises."""
    result: str
    """In a few words."""
    figures: dict[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """Return the row as JSON."""
        fields: dict[str, Json] = {"kind": self.kind, "attack": self.attack, "held": self.held, "result": self.result}
        return fields | self.figures
