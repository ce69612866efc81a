"""What the scripts bench/NAME/table share: bench/results/NAME.md is what they make of the numbers beside it."""
import json
import os
import sys

RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")


def load(folder, name):
    """The results in NAME.json; of most, one for each kind of CPU that they were measured on."""
    with open(os.path.join(folder, name + ".json")) as f:
        return json.load(f)


def keep(name, result):
    """Puts a result into NAME.json, in the place of the one of the same kind of CPU."""
    kept = load(RESULTS, name) if os.path.exists(os.path.join(RESULTS, name + ".json")) else []
    kept = [r for r in kept if r["cpu"] != result["cpu"]] + [result]
    with open(os.path.join(RESULTS, name + ".json"), "w") as f:
        json.dump(kept, f, indent=1)
        f.write("\n")


def main(name, text, **more):
    """table [--check] [FOLDER]: writes NAME.md, text(FOLDER), or ends with an error where it is another; `more`: pages beside it."""
    words = [w for w in sys.argv[1:] if w != "--check"]
    folder = words[0] if words else RESULTS
    wrong = []
    for page, of in {name: text, **more}.items():
        path = os.path.join(folder, page + ".md")
        made = of(folder)
        if "--check" in sys.argv:
            with open(path) as f:
                wrong += [] if f.read() == made else [f"{path} is not what bench/{name}/table makes"]
        else:
            with open(path, "w") as f:
                f.write(made)
    sys.exit("\n".join(wrong) or None)
