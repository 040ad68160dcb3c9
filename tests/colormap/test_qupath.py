import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from bottlegan.colormap.cube import Cube, interpolate, write_cube
from bottlegan.colormap.qupath import make_script, quote

MAIN = """
public class Main {
    public static void main(String[] files) throws Exception {
        CubeTable table = new CubeTable(Files.readAllLines(Path.of(files[0])));
        String[] words = Files.readString(Path.of(files[1])).split(" ");
        int[] pixels = Arrays.stream(words).mapToInt(Integer::parseInt).toArray();
        table.map(pixels);
        System.out.print(Arrays.toString(pixels));
    }
}
"""


def test_a_script_names_its_table_and_quotes_what_users_named() -> None:
    script = make_script(Path("/slides/our $lab's.cube"), 'a "lab" é', "9.8.7")
    assert script.startswith("// BottleGAN 9.8.7: ")
    assert r"""String table = "/slides/our \$lab's.cube" // or""" in script
    assert r'String title = "a \"lab\" \u00e9"' in script
    assert script.isascii()
    assert "{{" not in script
    assert script.endswith("}\n")


def test_the_path_of_the_table_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"String table = {quote(str(tmp_path / 'a.cube'))}" in make_script(Path("a.cube"), "a", "1")


@pytest.mark.parametrize("text", ["plain", 'C:\\new\\users"', "${System.exit(1)}", "two\nlines", "日本 😀"])
def test_quoted_text_is_one_literal(text: str) -> None:
    quoted = quote(text)
    assert quoted.isascii()
    assert "\n" not in quoted
    assert not re.search(r"(?<!\\)\$", quoted)
    assert json.loads(quoted.replace("\\$", "$")) == text


def test_the_class_that_maps_colors_does_what_the_package_does(tmp_path: Path) -> None:
    """There is no QuPath and no Groovy here. But this class of the script is also plain Java, so Java can run it."""
    compiler, java = shutil.which("javac"), shutil.which("java")
    if compiler is None or java is None:
        pytest.skip("there is no javac and java to run a part of the script")
    script = make_script(Path("a.cube"), "a", "1")
    found = re.search(r"^class CubeTable \{.*?^\}$", script, re.MULTILINE | re.DOTALL)
    assert found is not None
    imports = "import java.nio.file.Files;\nimport java.nio.file.Path;\nimport java.util.*;\n"
    (tmp_path / "Main.java").write_text(imports + found[0] + MAIN)
    random = np.random.default_rng(0)
    grid = np.round(random.uniform(-0.1, 1.1, (9, 9, 9, 3)), 6)
    write_cube(tmp_path / "a.cube", Cube("a b", grid, ("1 2 3", "four")))
    colors = np.concatenate([random.integers(0, 256, (5000, 3), np.uint8), np.array([[0, 0, 0], [255] * 3], np.uint8)])
    (tmp_path / "colors").write_text(" ".join(str(r << 16 | g << 8 | b) for r, g, b in colors.tolist()))
    subprocess.run([compiler, "-Xlint:all", "-Werror", "Main.java"], cwd=tmp_path, check=True)
    done = subprocess.run([java, "Main", "a.cube", "colors"], cwd=tmp_path, capture_output=True, text=True, check=True)
    mapped = np.array(json.loads(done.stdout)) & 0xFFFFFF
    assert np.array_equal(np.stack([mapped >> 16, mapped >> 8 & 255, mapped & 255], axis=1), interpolate(grid, colors))
    (tmp_path / "a.cube").write_text("LUT_3D_SIZE 2\n0 0 0\n")
    cut = subprocess.run([java, "Main", "a.cube", "colors"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert cut.returncode != 0
    assert "not a whole .cube file" in cut.stderr
