"""A small shop, a real worker, and a story that checks itself: what `fairlead demo` shows."""
