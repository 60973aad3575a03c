"""Cleaning: every source becomes plain ASCII paragraphs."""

import re
import unicodedata

SPELLED = {
    "\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "--",
    "\u2026": "...", "\u00e6": "ae", "\u00c6": "Ae", "\u0153": "oe", "\u00df": "ss", "\u00a3": "L",
    "\u00a7": "section ", "\u00b0": " degrees", "\u00bc": " 1/4", "\u00bd": " 1/2",
    "\u00be": " 3/4",
}  # fmt: skip


def ascii_only(text):
    """ASCII with newlines: known signs are spelled out, accents dropped, the rest removed."""
    text = "".join(SPELLED.get(c, c) for c in text.replace("\r\n", "\n").replace("\r", "\n"))
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^\n -~]", "", text.replace("\t", " "))


def prose(text):
    """One line a paragraph, a blank line between paragraphs."""
    paragraphs = (" ".join(p.split()) for p in re.split(r"\n\s*\n", ascii_only(text)))
    return "\n\n".join(p for p in paragraphs if p) + "\n"


def lines(text):
    """Keeps the lines, for verse and plays; at most one blank line in a row."""
    text = "\n".join(line.rstrip() for line in ascii_only(text).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def without_gutenberg(text):
    """What stands between Project Gutenberg's header and footer."""
    begin = re.search(r"\*\*\* ?START OF.*?\*\*\*|\*END\*?THE SMALL PRINT.*?\n", text, re.S)
    text = text[begin.end() :] if begin else text
    end = re.search(r"\*\*\* ?END OF|End of (?:the|this)? ?Project Gutenberg", text)
    return text[: end.start()] if end else text


def split_at(pattern, text, least=400):
    """Parts that start where `pattern` (multi-line) matches; scraps shorter than `least` go."""
    starts = [m.start() for m in re.finditer(pattern, text, re.M)]
    edges = [0, *(s for s in starts if s), len(text)]
    parts = (text[a:b].strip() + "\n" for a, b in zip(edges, edges[1:], strict=False))
    return [p for p in parts if len(p) >= least]


CHAPTER = r"^(?:CHAPTER|Chapter|LETTER|BOOK|VOLUME) (?:[IVXLC]+|\d+)\.?(?: .{0,60})?$"


def sections(text, most=6000):
    """Pieces of about `most` bytes that end at a blank line, or at a line where there is none."""
    pieces = []
    while len(text) > 1.5 * most:
        cut = text.rfind("\n\n", most // 2, most) + 2
        cut = cut if cut > 1 else text.rfind("\n", most // 2, most) + 1
        cut = cut if cut > 0 else most
        pieces.append(text[:cut].strip("\n") + "\n")
        text = text[cut:]
    return [*pieces, text.strip("\n") + "\n"]
