"""A staining style, as numbers: what the paper's artificial styles are, and the reference stain among them."""

from bottlegan.config import document

Rgb = tuple[float, float, float]


@document
class Style:
    """One lab's staining style."""

    name: str
    hematoxylin: Rgb
    """Optical density where hematoxylin is strong: at concentration 1."""
    eosin: Rgb
    """Optical density where eosin is strong: at concentration 1."""
    pixel_noise: float = 0.0
    """Standard deviation of each pixel's concentrations, relative to them."""
    white: Rgb = (1.0, 1.0, 1.0)
    """What the scanner makes of white: its white point times the tint of its lamp."""
    gamma: float = 1.0
    """Exponent of the scanner's intensities."""
    offset: tuple[float, float] = (0.0, 0.0)
    """Concentration of each stain that is everywhere, glass included."""
