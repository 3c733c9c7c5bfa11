"""`python -m fairlead`: the same as the `fairlead` command."""

from fairlead.cli.main import main

main()
