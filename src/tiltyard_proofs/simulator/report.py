"""A run in words: who took part, each step with what came of it, and the promise that was broken."""

from __future__ import annotations

from tiltyard.format.names import parse_manifest_name
from tiltyard.transaction.log import VERSIONS
from tiltyard_proofs.simulator.scenario import Outcome, Part

LONGEST_RESULT = 90


def describe(outcome: Outcome) -> str:
    """The whole run, one line a step."""
    scenario = outcome.scenario
    kind = scenario.kind
    traits = [name for name in ("stable", "keyed", "indexed", "logged") if getattr(kind, name)]
    order = "ordered" if scenario.ordered else "unordered"
    lines = [f"table: {', '.join(traits) or 'plain'}; handler {scenario.handler}, listings {order}; seed {scenario.seed}"]
    lines += [f"  {_part(part)}" for part in scenario.parts if part.role != "absent"]
    lines += [f"  the clock jumps by {seconds} s at step {step}" for step, seconds in sorted(scenario.jumps.items())]
    width = max((len(part.name) for part in scenario.parts), default=0)
    for number, step in enumerate(outcome.trace, start=1):
        name = scenario.parts[step.actor].name
        lines.append(f"{number:4}  {name:{width}}  {step.method:16} {readable_path(step.path)}  -> {_short(step.result)}")
    lines += [
        f"  {_attempt_line(attempt.actor, attempt.intention, attempt.outcome, attempt.version, attempt.error, outcome)}"
        for attempt in outcome.attempts
    ]
    lines.append(f"BROKEN  {outcome.violation}" if outcome.violation is not None else "all promises hold")
    return "\n".join(lines)


def _attempt_line(actor: int, intention: str, said: str, version: int | None, error: str, outcome: Outcome) -> str:
    at = f" as version {version}" if version is not None else ""
    why = f" ({error})" if error else ""
    return f"{outcome.scenario.parts[actor].name}: {intention} {said}{at}{why}"


def _part(part: Part) -> str:
    wants = ", then ".join(str(intention) for intention in part.intentions)
    what = {"cleaner": f"removes versions older than {part.older_than} s", "reader": "reads"}.get(part.role, wants)
    faults = "".join(f"; {fault.value} at call {number}" for number, fault in sorted(part.faults.items()))
    return f"{part.name} ({part.role}): {what}{faults}"


def readable_path(path: str) -> str:
    """Manifests by their version: nobody can tell one 20-digit number from another."""
    if not path.startswith(VERSIONS):
        return path
    parsed = parse_manifest_name(path[len(VERSIONS) :])
    return path if parsed is None else f"{VERSIONS}<version {parsed.version}>"


def _short(result: str) -> str:
    if ", first " in result:
        count, _, first = result.partition(", first ")
        parsed = parse_manifest_name(first.split()[0])
        result = f"{count}, first <version {parsed.version}>{first[len(first.split()[0]) :]}" if parsed is not None else result
    return result if len(result) <= LONGEST_RESULT else f"{result[:LONGEST_RESULT]}..."
