"""Packs recordings of planted.py: planted_pack.py FOLDER PROGRAMS OUTPUT [COUNT].

OUTPUT is an archive with the first COUNT programs that all four ranks have recorded, for
`go test ./cmd/symmem/internal/diff/load -run RecordedPrograms -recordings OUTPUT`.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

RANKS = 4


def main() -> None:
    """Pack the recordings of a folder."""
    folder, output = Path(sys.argv[1]), sys.argv[3]
    programs = json.loads(Path(sys.argv[2]).read_text())
    count = int(sys.argv[4]) if len(sys.argv) > 4 else len(programs)
    files: dict[str, bytes] = {}
    for rank in range(RANKS):
        for kind in ("rank", "calls"):
            recorded = folder / f"{kind}{rank}.tar.gz"
            if kind == "calls" and not recorded.exists():  # The ranks shared GPUs.
                continue
            with tarfile.open(recorded) as archive:
                for member in archive.getmembers():
                    name, extension = member.name.split(".")
                    content = archive.extractfile(member)
                    assert content is not None, member.name
                    files[f"{name}/rank{rank}.{extension}"] = content.read()
    names = [f"rank{rank}.{extension}" for rank in range(RANKS) for extension in ("json", "pickle")]
    with tarfile.open(output, "w:gz", compresslevel=9) as archive:

        def add(name: str, data: bytes) -> None:
            header = tarfile.TarInfo(name)
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))

        done = 0
        while done < count and all(f"{done}/{name}" in files for name in names):
            add(f"{done}/program.json", json.dumps(programs[done]).encode())
            for name in names:
                add(f"{done}/{name}", files[f"{done}/{name}"])
            done += 1
        for name in names:
            if f"calls/{name}" in files:
                add(f"calls/{name}", files[f"calls/{name}"])
    print(f"{done} programs")


if __name__ == "__main__":
    main()
