"""deltaworks.retarget: the folders that it reads, writes, replaces and leaves alone."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltaworks.retarget import Refused, retarget
from genai import PACKAGES, change_graph, copy_of

SOURCE = PACKAGES / "paged/float16"


def digests(folder):
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in folder.iterdir()
    }


def test_the_source_stays_and_a_second_run_changes_nothing(tmp_path):
    source, target = copy_of("paged/float16", tmp_path / "source"), tmp_path / "target"
    before = digests(source)
    first = retarget(source, target)
    written = {name: digest for name, (digest, _) in digests(target).items()}
    assert retarget(source, target) == first
    assert {name: digest for name, (digest, _) in digests(target).items()} == written
    assert digests(source) == before
    assert {path.name for path in tmp_path.iterdir()} == {"source", "target"}


def test_weights_in_a_subfolder_are_refused(tmp_path):
    source = copy_of("paged/int4", tmp_path / "source")

    def move(graph):
        stored = next(t for t in graph.initializer if t.external_data)
        next(e for e in stored.external_data if e.key == "location").value = "data/weights"

    change_graph(source / "model.onnx", move)
    with pytest.raises(Refused, match="data/weights, which holds weights, lies in a subfolder"):
        retarget(source, tmp_path / "target")


def test_a_copy_that_ends_early_is_finished(tmp_path, monkeypatch):
    """Some file systems end copy_file_range early, without an error."""
    plain = os.copy_file_range
    monkeypatch.setattr(
        os, "copy_file_range", lambda a, b, n: 0 if os.lseek(a, 0, 1) else plain(a, b, 999)
    )
    retarget(PACKAGES / "paged/int4", tmp_path / "target")
    data = "model.onnx.data"
    whole = (PACKAGES / "paged/int4" / data).read_bytes()
    assert (tmp_path / "target" / data).read_bytes() == whole


def test_the_old_target_comes_back_when_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    source, target = PACKAGES / "paged/int4", tmp_path / "target"
    retarget(source, target)
    before, rename = digests(target), Path.rename

    def fail(path, to):
        if ".partial-" in path.name:
            raise OSError("no room")
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no room"):
        retarget(source, target)
    assert digests(target) == before
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_folders_that_it_leaves_alone(tmp_path):
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine.txt").write_text("mine")
    with pytest.raises(Refused, match="was not made by this tool"):
        retarget(SOURCE, target)
    assert [path.name for path in target.iterdir()] == ["mine.txt"]
    source = copy_of("paged/int4", tmp_path / "source")
    for inside in (source, source / "cpu", tmp_path):
        with pytest.raises(Refused, match="lie in each other"):
            retarget(source, inside)
    retarget(source, tmp_path / "cpu")
    with pytest.raises(Refused, match="is for the CPU already"):
        retarget(tmp_path / "cpu", tmp_path / "again")
    with pytest.raises(Refused, match="has no genai_config.json"):
        retarget(target, tmp_path / "again")


def test_links_share_the_weights(tmp_path):
    source = copy_of("paged/int4", tmp_path / "source")
    retarget(source, tmp_path / "target", link=True)
    data = "model.onnx.data"
    assert (source / data).samefile(tmp_path / "target" / data)
    assert not (source / "model.onnx").samefile(tmp_path / "target/model.onnx")


@pytest.mark.parametrize("link", [False, True])
def test_files_behind_symlinks_are_whole_in_the_target(tmp_path, link):
    """The caches of model hubs are folders of links like these."""
    source, target = copy_of("paged/int4", tmp_path / "source"), tmp_path / "other/target"
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for path in list(source.iterdir()):
        path.rename(blobs / path.name)
        path.symlink_to(Path("../blobs", path.name))
    before = digests(source)
    retarget(source, target, link=link)
    assert digests(source) == before
    assert not any(path.is_symlink() for path in target.iterdir())
    data = "model.onnx.data"
    assert (target / data).read_bytes() == (blobs / data).read_bytes()
    assert (target / data).samefile(blobs / data) == link


LARGE_RUN = """
import json, os, pathlib, sys
from deltaworks.retarget import __main__, retarget

os.copy_file_range = lambda *_: 0  # the read that follows is what could take memory
seen = []

def progress(file, done, size):
    seen.append((file, done, size))
    __main__.bar(file, done, size)

retarget(sys.argv[1], sys.argv[2], progress=progress)
peak = pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(json.dumps([seen, int(peak) << 10]))
"""


def test_a_large_file_takes_little_memory_and_tells_how_far_it_is(tmp_path):
    source, data, size = copy_of("paged/int4", tmp_path / "source"), "model.onnx.data", 320 << 20
    os.truncate(source / data, size)  # a hole: what is read are zeros
    command = [sys.executable, "-c", LARGE_RUN, source, tmp_path / "target"]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.stderr
    seen, peak = json.loads(done.stdout)
    steps = [moved for file, moved, _ in seen if file == data]
    assert len(steps) >= 10 and sorted(set(steps)) == steps and steps[-1] == size
    assert {total for file, _, total in seen if file == data} == {size}
    assert peak < size / 2, f"{peak:,}"
    assert done.stderr.count(b"\r") == len(steps)  # small files are not worth a bar
    assert done.stderr.endswith(b"\rmodel.onnx.data: 320 of 320 MiB\n")
    assert (tmp_path / "target" / data).stat().st_size == size
    (tmp_path / "target" / data).unlink()  # pytest keeps folders
