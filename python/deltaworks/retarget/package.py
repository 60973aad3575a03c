"""The folder: what is read, what is written, and in what order."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from onnx import ModelProto

from .. import __version__, onnxruntime_library
from . import Progress, configuration, served
from ._refused import Refused
from .configuration import LIBRARY, Config, Options, memory_of
from .graph import damage
from .rewrite import rewrite

CONFIGURATION = "genai_config.json"
RECORD = "retarget.json"  # written last: a folder that has it is whole, and this tool's
TOKENIZER = "tokenizer_config.json"
# transformers 5 writes the first for every checkpoint of Qwen3.5; GenAI 0.18 knows the second, and
# both read tokenizer.json.
TOKENIZER_CLASSES = {"Qwen3_5Tokenizer": "Qwen2Tokenizer"}
CHUNK = 16 << 20


@dataclass
class Package:
    """What is to be written, beside the files of `source` that stay as they are."""

    source: Path
    config: Config
    models: dict[str, ModelProto] = field(default_factory=dict)  # by file name
    texts: dict[str, str] = field(default_factory=dict)  # likewise, other files that change
    changes: list[str] = field(default_factory=list)


def convert(source: Path, target: Path, options: Options, progress: Progress) -> list[str]:
    package = Package(source, read_configuration(source))
    refuse(folder_refusals(source, target) or configuration.refusals(package.config))
    reasons = []
    parts = configuration.parts(package.config)
    for part in parts.values():
        name = part["filename"]
        if name in package.models:
            refuse([f"{CONFIGURATION} names {name} twice, for two parts: build the package again"])
        model = package.models[name] = read_model(source / name)
        reasons += stored_refusals(source, part, model)
        changes = rewrite(part, model, options)
        package.changes += [f"{name}: {text}" for text in changes]
        package.changes += [f"{name}: {text}" for text in served.unasked(model)]
        reasons += [f"{name}, {text}" for text in served.refusals(model)]
    refuse(reasons)
    memories = {
        name: memory_of(part["filename"], package.models[part["filename"]])
        for name, part in parts.items()
    }
    package.changes += configuration.for_cpu(package.config, memories, options)
    rename_tokenizer(package)
    write(package, target, options.link, progress)
    return package.changes


def rename_tokenizer(package: Package) -> None:
    path = package.source / TOKENIZER
    settings = read_object(path) if path.is_file() else {}
    found = settings.get("tokenizer_class")
    if isinstance(found, str) and found in TOKENIZER_CLASSES:
        settings["tokenizer_class"] = TOKENIZER_CLASSES[found]
        package.texts[TOKENIZER] = json.dumps(settings, indent=2) + "\n"
        package.changes.append(
            f"{TOKENIZER}: tokenizer_class {TOKENIZER_CLASSES[found]}, which GenAI knows, instead "
            f"of {found}"
        )


def refuse(reasons: list[str]) -> None:
    if reasons:
        raise Refused(reasons)


def read_configuration(source: Path) -> Config:
    path = source / CONFIGURATION
    if not path.is_file():
        raise Refused([f"{source} has no {CONFIGURATION}: give the folder that the builder wrote"])
    return read_object(path)


def read_object(path: Path) -> Config:
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise Refused([f"{path} is no JSON: {error}: build the package again"]) from error
    if not isinstance(found, dict):
        raise Refused([f"{path} holds no JSON object: give the folder that the builder wrote"])
    return found


def folder_refusals(source: Path, target: Path) -> list[str]:
    if (source / RECORD).exists():
        return [f"{source} is for the CPU already: give the package that the builder wrote"]
    ours, theirs = target.resolve(), source.resolve()
    if ours == theirs or ours in theirs.parents or theirs in ours.parents:
        return [f"{target} and {source} lie in each other: give the target a folder of its own"]
    if target.exists() and not (target / RECORD).exists() and any_inside(target):
        return [f"{target} exists and was not made by this tool: give another folder, or remove it"]
    return []


def any_inside(path: Path) -> bool:
    return not path.is_dir() or any(path.iterdir())


def read_model(path: Path) -> ModelProto:
    """The graph; weights that lie in other files stay there."""
    if not path.is_file():
        raise Refused([f"{path} is missing, which {CONFIGURATION} names: build the package again"])
    try:
        model = onnx.load(path, load_external_data=False)
    except OSError:
        raise
    except Exception as error:  # protobuf's, which onnx does not name
        raise Refused([f"{path} is no ONNX model ({error}): build the package again"]) from error
    if why := damage(model.graph):
        raise Refused([f"{path} is damaged: {why}: build the package again"])
    return model


def stored_refusals(source: Path, part: Config, model: ModelProto) -> list[str]:
    """Weights that are not where the graph, or shared_initializers, says."""
    stored = {t.name: {e.key: e.value for e in t.external_data} for t in model.graph.initializer}
    ends: dict[str, int] = {}  # of each file with weights: the bytes that it must have
    name = part["filename"]
    for place in filter(None, stored.values()):
        numbers = [place.get(key) or "0" for key in ("offset", "length")]
        if not all(str(number).isdecimal() for number in numbers):
            return [f"{name}: a weight lies at {place}, which is no place: build the package again"]
        location = place.get("location", "")
        ends[location] = max(ends.get(location, 0), sum(map(int, numbers)))
    reasons = [why for f in sorted(ends) if (why := file_reason(source, name, f, ends[f]))]
    for entry in part.get("shared_initializers", []):
        place = stored.get(entry["name"], {})
        found = (place.get("location"), int(place.get("offset", 0)))
        if found != (entry["data_file"], int(entry["offset"])):
            reasons.append(f"{name} does not share the weight {entry['name']}")
    return reasons


def file_reason(source: Path, graph: str, name: str, end: int) -> str:
    """Why a file with weights cannot be taken along; empty when it can."""
    if not name:
        return f"{graph}: a weight names no file: build the package again"
    if Path(name).name != name:
        where = "in a subfolder or elsewhere, from where nothing is copied"
        return f"{graph}: the file {name}, which holds weights, lies {where}"
    if not (source / name).is_file():
        return f"{graph}: no file {name}, which holds weights, in {source}"
    size = (source / name).stat().st_size
    if size < end:
        return f"{graph}: {name} has {size:,} bytes, but weights up to {end:,}: it is not whole"
    return ""


def write(package: Package, target: Path, link: bool, progress: Progress) -> None:
    """Makes the folder beside the target and then gives it the target's name."""
    target = target.resolve()  # what a link leads to is replaced, not the link
    fresh = target.with_name(f".{target.name}.partial-{os.getpid()}")
    remove_leftovers(target, "partial")
    parents = [path for path in fresh.parents if not path.exists()]
    try:
        make_folder(fresh)
        for path in sorted(package.source.iterdir()):
            changed = (CONFIGURATION, LIBRARY, *package.models, *package.texts)
            if path.name not in changed and path.is_file():
                transfer(path, fresh / path.name, link, progress)
        for name, text in package.texts.items():
            (fresh / name).write_text(text)
        for name, model in package.models.items():
            (fresh / name).write_bytes(model.SerializeToString())
        shutil.copyfile(onnxruntime_library(), fresh / LIBRARY)
        (fresh / CONFIGURATION).write_text(json.dumps(package.config, indent=4) + "\n")
        record = {
            "made_by": f"deltaworks.retarget {__version__}",
            "source": str(package.source.resolve()),
            "changes": package.changes,
        }
        (fresh / RECORD).write_text(json.dumps(record, indent=4) + "\n")
        if target.exists():
            old = target.with_name(f".{target.name}.old-{os.getpid()}")
            target.rename(old)
            try:
                fresh.rename(target)
            except BaseException:
                old.rename(target)
                raise
        else:
            fresh.rename(target)
        remove_leftovers(target, "old", os.getpid())
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        for path in parents:
            with contextlib.suppress(OSError):  # there is nothing, or something of others
                path.rmdir()
        raise


def make_folder(path: Path) -> None:
    """The folder beside the target; a failure names what the caller knows, not the folder."""
    try:
        path.mkdir(parents=True)
    except OSError as error:
        why = f"its parent folder cannot be written ({error.strerror})"
        raise OSError(error.errno, why, str(path.parent)) from error


def remove_leftovers(target: Path, kind: str, own: int = 0) -> None:
    """What runs that were killed left beside the target, and the run `own`."""
    begin = f".{target.name}.{kind}-"
    for path in target.parent.iterdir() if target.parent.is_dir() else []:
        run = path.name.removeprefix(begin) if path.name.startswith(begin) else ""
        if run == str(own) or (run.isdecimal() and not Path("/proc", run).exists()):
            shutil.rmtree(path)


def transfer(source: Path, target: Path, link: bool, progress: Progress) -> None:
    """Links a file, or copies it in pieces; a file system that can shares the copy's blocks."""
    if link:
        os.link(source.resolve(), target)  # a symlink's own link would lead nowhere from there
        return
    size, done = source.stat().st_size, 0
    with source.open("rb", buffering=0) as reader, target.open("wb") as writer:
        try:
            while moved := os.copy_file_range(reader.fileno(), writer.fileno(), CHUNK):
                done += moved
                progress(source.name, done, size)
        except OSError:  # no such call between these file systems
            if done:
                raise
        reader.seek(done)
        # Some file systems end such calls early, without an error.
        while piece := reader.read(CHUNK):
            writer.write(piece)
            done += len(piece)
            progress(source.name, done, size)
    if done != size:
        raise OSError(f"{done} of the {size} bytes of {source} were read")
