"""Programs of two versions at one store (P14, F52 to F55, F81): the story, told once for every store.

What is stored, and what crosses a process, is read as "at least these fields". What is not known is
passed over, and kept when the value is written back. So a program goes on beside a newer one, and
neither loses, forgets or repeats what the other did. Here is what shows it:

    future.py         a program of the version to come, as far as a store sees it; a file for each store
    test_story.py     it and today's program take turns with the same jobs, in both directions
    test_levels.py    jobs that only the newer program knows how to end: today's leaves them alone
    test_values.py    what processes say to each other, with fields that only one of them knows
    test_steps.py     which programs a step of the schema serves, and what becomes of the others
    test_outdated.py  a worker that is told so drains, whichever verb says it
    test_workers.py   the same with real workers and producers
    test_previous.py  the program of previous_version.txt, built from the history, beside today's
    test_sqlite.py    what only a file can show
    test_redis.py     what only arrays in Redis can show

CONTRIBUTING.md says how to add a field or a step.
"""
