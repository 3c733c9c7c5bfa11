"""Play the demo, and draw what it prints as docs/demo.svg, the picture in the README."""

import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

PICTURE = Path(__file__).with_name("demo.svg")
WIDTH = 92
SCENES = (1, 2, 5, 7)
# Without a font from elsewhere: the picture needs nothing but itself.
FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
THEME = TerminalTheme(
    (22, 27, 34),
    (214, 220, 228),
    [
        (72, 79, 88),
        (255, 123, 114),
        (86, 211, 100),
        (227, 179, 65),
        (121, 192, 255),
        (210, 168, 255),
        (86, 212, 221),
        (214, 220, 228),
    ],
)


def main() -> None:
    """Play it once; a demo that fails is not drawn."""
    printed = subprocess.run(  # noqa: S603 (our own command)
        [Path(sys.executable).parent / "fairlead", "demo"],
        env=os.environ | {"FORCE_COLOR": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        for line in ("$ fairlead demo", *_shown(printed.splitlines())):
            console.print(Text.from_ansi(line), soft_wrap=True)
    PICTURE.write_text(
        console.export_svg(title="fairlead demo", theme=THEME, code_format=FORMAT, unique_id="demo")
    )
    print(f"drawn: {PICTURE}")


def _shown(lines: list[str]) -> list[str]:
    """Return the scenes that tell most in little room, without what is true only here."""
    shown, scene = [], 0
    for line in lines:
        plain = Text.from_ansi(line).plain
        if plain[:1].isdigit():
            scene = int(plain[0])
        if plain.startswith("Try next"):
            break
        if scene in SCENES:
            shown.append(line)
    return shown


if __name__ == "__main__":
    main()
