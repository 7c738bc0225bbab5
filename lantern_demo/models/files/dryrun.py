"""What loading a published model would take, told before it is tried: nothing is fetched, converted or loaded."""

from __future__ import annotations

from pathlib import Path

from lantern_demo.models import families
from lantern_demo.models.files import hub, needs
from lantern_demo.models.files.convert import CheckpointError
from lantern_demo.models.files.hub import Located
from lantern_demo.models.files.needs import MISSING, Piece, gib
from lantern_demo.models.machine.device import pick_device
from lantern_demo.models.machine.mps import UNTRIED
from lantern_demo.models.registry import ModelInfo, Part, Published


def report(info: ModelInfo, device: str = "auto", dtype: str = "auto", folder: Path | None = None) -> tuple[list[str], bool]:
    """Lines that say what is fetched, from where, at which revision, its size, and whether it fits; and whether all does.

    The tensors of files in a local folder are checked one by one. Raises ValueError for a bad device, dtype or LANTERN_REVISIONS.
    """
    published = info.published
    assert published is not None
    chosen = pick_device(device)
    number = info.dtype(dtype, chosen)
    lines, fits = [f"{info.id}: {info.title}", ""], True
    todo = needs.pieces(info, folder)
    for piece in todo:
        said, well = _part(published, piece, folder)
        lines += said
        fits = fits and well
    lines += [
        "",
        "Sizes are estimates, from the shapes of the tensors and the bytes that a number is believed to take in each file.",
    ]
    downloads, converted = sum(p.download for p in todo), sum(p.convert for p in todo)
    short = needs.short_of_disk(info, folder)
    lines.append(
        f"Disk: about {gib(downloads)} to download, about {gib(converted)} to write when converting. "
        + (f"Not enough: {short}." if short else "Enough is free.")
    )
    free = needs.free_memory(chosen)
    on_cpu = chosen.type == "cpu"
    sizes = ", ".join(f"{gib(needs.memory(published, d, on_cpu))} in {d}" for d in ("float32", "bfloat16"))
    tight = needs.short_of_memory(published, chosen, number)
    room = "It is not known how much is free." if free is None else f"{gib(free)} are free."
    lines.append(f"Memory on {chosen}: about {sizes}. {room} " + (f"Not enough: {tight}." if tight else f"Enough for {number}."))
    taken = ", ".join(f"{what} {gib(size)}" for what, size in needs.budget(published, number, on_cpu).items() if size)
    lines.append(f"Of it in {number}: {taken}.")
    if chosen.type == "mps":
        lines.append(UNTRIED)
    return lines, fits and not short and not tight


def _part(published: Published, piece: Piece, folder: Path | None) -> tuple[list[str], bool]:
    """What there is to say of a part, and whether all is well with it."""
    source = published.sources[piece.part][0]
    if folder and piece.state == MISSING:
        line = f"{piece.part}: {MISSING}; {hub.wanted_files(published.sources[piece.part], piece.part, folder)}"
        return [line], piece.part == "drafter"
    located = hub.find(published.sources[piece.part], piece.part, folder) if folder else None
    if located:
        where = f"{piece.part}: {', '.join(str(p) for p in located.weights)} ({gib(int(located.facts['bytes']))})"
        try:
            count = check_part(published, piece.part, located)
        except CheckpointError as error:
            if located.source.unchecked:
                return [where, f"  {error}", "  the model does without it"], True
            return [where, f"  {error}"], False
        return [where, f"  all {count} tensors are as expected" if count else "  its vocabulary is as expected"], True
    revision = hub.revision_of(source)
    lines = [f"{piece.part}: {source.weights} of {source.repo}, revision {revision}"]
    if piece.state != "to download":
        return [*lines, f"  {piece.state} before; the Hub is not asked"], True
    try:
        answer = hub.ask(source)
    except CheckpointError as error:
        if source.unchecked:
            return [*lines, f"  {error}", "  the model does without it"], True
        return [*lines, f"  {error}"], False
    size = f"about {gib(piece.download)} to download"
    if answer is None:
        return [*lines, f"  {size}; the Hub could not be asked which commit that is"], True
    return [*lines, f"  {size} ({gib(answer[1])} by the Hub); now commit {answer[0]}"], True


def check_part(published: Published, part: Part, located: Located) -> int:
    """Check every tensor of a part's files, and what lies beside them -> how many weights there are. Raises CheckpointError."""
    if part == "text":
        return families.family_of(published.target).check_text(published.target, located)
    _, network = families.expected(part, published, located)
    families.weights(network, located)
    return len(list(network.parameters()))
