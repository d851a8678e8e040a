"""A line for each case: PASS, FAIL with the reason, or SKIP with what is missing."""


class Skip(Exception):
    """The case cannot run here, and why."""


def run_cases(suite, functions, wanted):
    """Runs those of `functions` that are called case_…, or of them what has one of the `wanted` parts in its name.

    `functions` is globals() of the suite. Returns the exit status."""
    failures = 0
    for name, test in [(name[5:].replace("_", "-"), test) for name, test in list(functions.items()) if name.startswith("case_")]:
        if wanted and not any(part in name for part in wanted):
            continue
        try:
            test()
            print(f"PASS {suite}/{name}", flush=True)
        except Skip as why:
            print(f"SKIP {suite}/{name}: {why}", flush=True)
        except Exception as error:  # One line for each case, whatever went wrong in it.
            failures += 1
            why = " ".join(str(error).split()) or type(error).__name__
            print(f"FAIL {suite}/{name}: {why[:600]}", flush=True)
    return 1 if failures else 0
