"""The `fairlead` command: one file per noun."""
