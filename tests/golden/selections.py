#!/usr/bin/env python3
"""Write golden-index.json: which positions the indexer selects in the fixtures that have one, from the index scores of scripts/reference.py.

usage: tests/golden/selections.py, in the source tree
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy

HERE = pathlib.Path(__file__).parent
TOP_K = 16


def main():
    golden = json.loads((HERE / "golden-variants.json").read_text())
    out = {}
    for name in ("dsa", "dsa-shared", "v32"):
        with tempfile.TemporaryDirectory() as d:
            dump = pathlib.Path(d) / "dump.npz"
            ids = ",".join(str(i) for i in golden[name]["ids"])
            reference = HERE.parent.parent / "scripts" / "reference.py"
            subprocess.run([sys.executable, reference, HERE / f"fixture-{name}.gguf", ids, "--dump", dump], check=True, stdout=subprocess.DEVNULL)
            arrays = numpy.load(dump)
            out[name] = {}
            for key in arrays.files:
                if not key.endswith(".index_scores"):
                    continue
                # Row t: the TOP_K best of positions 0..t, ties to the lowest; a stable sort keeps equal scores in order of position.
                rows = [sorted(int(i) for i in numpy.argsort(-arrays[key][t, :t + 1], kind="stable")[:TOP_K]) for t in range(arrays[key].shape[0])]
                out[name][key.split(".")[1]] = rows
    (HERE / "golden-index.json").write_text(json.dumps(out, separators=(",", ":")) + "\n")


main()
