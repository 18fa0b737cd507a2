"""Plain graph algorithms on numbered nodes; nothing here knows what a transaction is."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

Successors = Mapping[int, Sequence[int]]

BLOCK = 16_384


def components(nodes: Iterable[int], successors: Successors) -> list[list[int]]:
    """Strongly connected components (Tarjan, without recursion), each after those it leads to."""
    numbers: dict[int, int] = {}
    lowest: dict[int, int] = {}
    open_nodes: list[int] = []
    is_open: set[int] = set()
    result: list[list[int]] = []
    for root in nodes:
        if root in numbers:
            continue
        path = [(root, iter(successors.get(root, ())))]
        numbers[root] = lowest[root] = len(numbers)
        open_nodes.append(root)
        is_open.add(root)
        while path:
            node, following = path[-1]
            for target in following:
                if target not in numbers:
                    numbers[target] = lowest[target] = len(numbers)
                    open_nodes.append(target)
                    is_open.add(target)
                    path.append((target, iter(successors.get(target, ()))))
                    break
                if target in is_open:
                    lowest[node] = min(lowest[node], numbers[target])
            else:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
                if lowest[node] == numbers[node]:
                    component = _taken_until(node, open_nodes)
                    is_open.difference_update(component)
                    result.append(component)
    return result


def _taken_until(node: int, stack: list[int]) -> list[int]:
    taken = [stack.pop()]
    while taken[-1] != node:
        taken.append(stack.pop())
    return taken


def circular(nodes: Iterable[int], successors: Successors) -> list[list[int]]:
    """The components that have a cycle. No node leads to itself here."""
    return [component for component in components(nodes, successors) if len(component) > 1]


def within(nodes: Collection[int], successors: Successors) -> dict[int, list[int]]:
    """The part of a graph that lies between the given nodes."""
    inside = set(nodes)
    return {node: [target for target in successors.get(node, ()) if target in inside] for node in nodes}


def shortest_path(source: int, target: int, successors: Successors, limit: int) -> tuple[list[int] | None, int]:
    """The nodes from source to target, both included, if there is a path of at most ``limit`` edges; and how many edges were looked at."""
    came_from = {source: source}
    queue = deque([(source, 0)])
    looked = 0
    while queue:
        node, depth = queue.popleft()
        if depth == limit:
            break
        for following in successors.get(node, ()):
            looked += 1
            if following in came_from:
                continue
            came_from[following] = node
            if following == target:
                return _back(came_from, source, target), looked
            queue.append((following, depth + 1))
    return None, looked


def _back(came_from: dict[int, int], source: int, target: int) -> list[int]:
    path = [target]
    while path[-1] != source:
        path.append(came_from[path[-1]])
    return path[::-1]


def shortest_cycle(starts: Iterable[tuple[int, int]], successors: Successors, effort: int = 3_000_000) -> list[int] | None:
    """The shortest cycle that begins with one of the given edges: its nodes, the first not repeated.

    When the effort (edges looked at) is used up, the shortest so far is given; it is a cycle all the same.
    """
    best: list[int] | None = None
    for first, second in starts:
        path, looked = shortest_path(second, first, successors, len(best) - 2 if best else len(successors))
        effort -= looked
        if path is not None:
            best = [first, *path[:-1]]
        if best is not None and (len(best) == 2 or effort < 0):
            break
    return best


def reachable(queries: Sequence[tuple[int, int]], nodes: Iterable[int], successors: Successors) -> list[bool]:
    """For each (from, to), whether there is a path. All at once with one bit per target, as a search per query would take too long."""
    parts = components(nodes, successors)
    part_of = {node: number for number, part in enumerate(parts) for node in part}
    onward = [{part_of[target] for node in part for target in successors.get(node, ())} - {number} for number, part in enumerate(parts)]
    targets = sorted({part_of[to] for _, to in queries})
    answers = [part_of[start] == part_of[to] for start, to in queries]
    for block in range(0, len(targets), BLOCK):
        bit = {part: 1 << place for place, part in enumerate(targets[block : block + BLOCK])}
        reach: list[int] = []
        for number in range(len(parts)):  # a part comes after all it leads to
            bits = 0
            for following in onward[number]:
                bits |= reach[following]
            reach.append(bits | bit.get(number, 0))
        for place, (start, to) in enumerate(queries):
            if part_of[to] in bit and reach[part_of[start]] & bit[part_of[to]]:
                answers[place] = True
    return answers
