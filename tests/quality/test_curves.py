import re

from bottlegan.quality.curves import COLORS, HIGH, TOP, draw_curves

PANELS = {"IOU": {"ours <1>": [(0, 0.0), (10, 1.0)], "theirs": [(0, 0.5), (10, 0.5)]}, "NLL": {"theirs": [(5, 2.0)]}}


def colors_of(name: str, svg: str) -> list[str]:
    return re.findall(rf'<polyline [^>]*stroke="(#\w+)"[^>]*><title>{re.escape(name)}</title>', svg)


def test_a_name_has_one_color_in_all_panels() -> None:
    svg = str(draw_curves(PANELS, "curves"))
    assert colors_of("theirs", svg) == [COLORS[1], COLORS[1]]
    assert colors_of("ours &lt;1&gt;", svg) == [COLORS[0]]
    assert "<1>" not in svg


def test_the_highest_point_is_near_the_top_and_the_lowest_on_the_axis() -> None:
    svg = str(draw_curves({"IOU": {"ours": [(0, 0.0), (10, 1.0)]}}, "curves"))
    (line,) = re.findall(r'<polyline points="([^"]*)"', svg)
    low, high = (float(point.split(",")[1]) for point in line.split())
    assert TOP < high < TOP + 0.1 * HIGH
    assert low > 0.8 * HIGH
