"""Models that are worth a try for whole books: pairs of a target and a draft, with what is known before a download.

Pure data. The parameters follow, to the last one, from layers, widths, heads and vocabulary of each model's published
config.json (a test counts them), and so do the KV bytes. Against what these were held, in stored copies of public pages
(November 2026):

    config.json itself, or copies of it    Llama 3.1 8B, Qwen 3 4B, Phi-3 mini, Gemma 4, EXAONE 4.0 1.2B, Granite 4.0 H,
      in others' tests                     LFM2 8B-A1B, Qwen 3.5 2B, Command R7B (heads and windows; its widths in a
                                           listing of its layers)
    others' training scripts or settings   Qwen 3.5 0.8B, 27B, 35B-A3B, Qwen 3 30B-A3B; OLMo 3 7B (one made of it)
    copies of its page, lists of others    Qwen 3.5 4B and 9B, gpt-oss-20b, LFM2 (its window: its settings say 128,000)
    counted by others in their weights     SmolLM3, Phi-4 mini, Granite 4.1, Seed-OSS, Qwen 3 1.7B, Gemma 3 1B: the
                                           very numbers below; Gemma 3 4B and 12B with 64 tokens less; Ministral 3 3B
                                           and 8B with the vision part, which is not loaded
    defaults of the installed library      GLM-4, Ministral 3 8B, SmolLM3 (but its window), Seed-OSS (but its width)
    the hub's own list of files, rounded   Llama 3.1 8B and 3.2 1B (copies: both are gated), Qwen 2.5 7B and 14B 1M,
                                           Qwen 3 0.6B and 8B, Phi-3 mini, LWM, both Yarn (their pickles), Llama-68M,
                                           Granite 4.0 H Tiny and Small
    licences on pages of its makers        Qwen 2.5 1M, Phi-3 mini, Llama-68M, Gemma 4, Yarn Llama 2; in copies or
                                           lists: Llama 3.2 1B, LWM, gpt-oss, LFM2, Qwen 3 1.7B, Qwen 3.5, SmolLM3,
                                           Phi-4 mini, Granite 4.0 and 4.1, Ministral 3, OLMo 3, Command R7B

For LWM, Yarn 7B and Llama-68M, of which pickles alone are published, the hub's own converter has proposed safetensors,
which are taken (``hub``); of Yarn 13B this is not known, and without them it is refused with that reason. The window of
Qwen 2.5 1M is in its makers' words.

From memory, and seen nowhere else: that Gemma 4 can be had without an account; the bytes behind the rounded sizes, the
sizes of Qwen 3 4B, Qwen 2.5 0.5B, Ministral 3 14B, GLM-4 9B, gpt-oss-20b and Gemma 3, the other licences. Files of
Qwen 3.5 and Gemma 4 hold eyes as well, and some ears, which are not counted. Nothing is decided by any of it but what
is shown beforehand: before weights are fetched, the hub's own list of files and the model's real settings count.

Whether a draft speaks its target's vocabulary is checked with both tokenizers before any weights are fetched
(``vocabulary``); pairs below are of one family, or both on the tokenizer of Llama 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.settings import DEMO_DRAFT, DEMO_MODEL, STARTER, STARTER_LONG, STARTERS
from app.models import starter
from engine.plan import ModelShape, StateSize

_LLAMA_31 = "Llama 3.1 Community License"
_LLAMA_32 = "Llama 3.2 Community License"
_LLAMA_2 = "Llama 2 Community License"
_GEMMA = "Gemma Terms of Use"
_APACHE = "Apache 2.0"
_LFM = "LFM Open License 1.0"
OLD = " Published as pickled weights, which are never opened: the hub's own conversion of them is taken."
_WINDOWS = "Five of six layers see only the newest tokens: the others alone remember the book."
_ASKS = " Its maker wants the licence accepted on the hub first."
_COUNTED = " Its size is counted from its numbers, and was not looked up."
_THREE_OF_FOUR = "Three of four layers see only the newest tokens: the others alone remember the book."
_SHARES = (
    "More than a third of its layers read what others remember, which makes its cache small. It takes the memory of "
    "all its weights and reads {} billion of them for a token. Its eyes and ears are not loaded. "
)
_STATES = "Three of four layers keep a state of fixed size: the others alone remember the book word for word."
_ONE_OF_TEN = "Nine of ten layers keep a state of fixed size: the others alone remember the book word by word."
_CONVOLVES = (
    "Most layers look back two tokens: the others alone remember the text. A window for documents, not for books."
)
_FEW_ASKED = "A token asks few of its experts: it answers as fast as a small model and takes the memory of a large one."
_RUN = "tested with these weights"
_REAL = "its kind tested with real weights of another model"
_TINY = "its kind tested on tiny random weights"
_TRAINED_1M = 262_144
"""Tokens that Qwen 2.5 1M was trained on. Its settings say 1,010,000, which needs an attention of its makers' (DCA)."""


@dataclass(frozen=True)
class Model:
    """One model. ``name`` is its hub id or folder; ``gated``: its maker wants the licence accepted on the hub first.

    ``shape`` is None for a folder of this machine: its files say it better.
    """

    name: str
    shape: ModelShape | None
    licence: str
    gated: bool = False


@dataclass(frozen=True)
class Pair:
    """A target with the draft that guesses for it; without one, guesses come from the book's own words.

    ``tested`` says what of it Trifold was tested with.
    """

    id: str
    title: str
    target: Model
    draft: Model | None
    note: str
    tested: str = ""

    @property
    def names(self) -> tuple[str, str | None]:
        return self.target.name, self.draft.name if self.draft else None


_LLAMA_32_1B = Model(
    "meta-llama/Llama-3.2-1B-Instruct",
    ModelShape(16, 8, 64, 1_235_814_400, 2_471_645_608, 131_072),
    _LLAMA_32,
    gated=True,
)
_QWEN_25_05B = Model("Qwen/Qwen2.5-0.5B-Instruct", ModelShape(24, 2, 64, 494_032_768, 988_097_824, 32_768), _APACHE)
_QWEN_3_06B = Model("Qwen/Qwen3-0.6B", ModelShape(28, 8, 128, 596_049_920, 1_503_300_328, 40_960), _APACHE)
_STATE_16, _STATE_32, _STATE_48 = (StateSize(heads, 128, 128, 4096 + 128 * heads, 4) for heads in (16, 32, 48))
_QWEN_35_08B = Model(
    "Qwen/Qwen3.5-0.8B",
    ModelShape(24, 2, 256, 752_393_024, 1_504_786_048, 262_144, recurrent_layers=18, state=_STATE_16),
    _APACHE,
)
_MINISTRAL_3B = Model(
    "mistralai/Ministral-3-3B-Instruct-2512-BF16",
    ModelShape(26, 8, 128, 3_429_006_336, 8_503_486_464, 262_144, 402_653_184),
    _APACHE,
)
_GEMMA_3_270M = Model(
    "google/gemma-3-270m-it",
    ModelShape(18, 1, 256, 268_098_176, 536_223_056, 32_768, 167_772_160, 15, 512),
    _GEMMA,
    gated=True,
)
_LLAMA_68M = Model("JackFram/llama-68m", ModelShape(2, 12, 64, 68_030_208, 272_123_144, 2_048), _APACHE)

DEMO = Pair(
    "demo",
    "Demo pair",
    Model(str(DEMO_MODEL), None, "MIT"),
    Model(str(DEMO_DRAFT), None, "MIT"),
    "Bundled. Shows the machine at work and can quote; it does not understand.",
    _RUN,
)

STARTER_PAIR = Pair(
    STARTER,
    STARTERS[STARTER],
    Model(STARTER, starter.SHAPE, starter.LICENCE),
    None,
    "SmolLM2 135M with Trifold's adapter, from the package index instead of the hub. For documents, not for books. "
    + starter.verdict(),
    _RUN,
)
STARTER_LONG_PAIR = Pair(
    STARTER_LONG,
    STARTERS[STARTER_LONG],
    Model(STARTER_LONG, starter.LONG_SHAPE, starter.LICENCE),
    None,
    "The same weights with twice the window (YaRN). " + starter.long_verdict(),
    _RUN,
)

PAIRS: tuple[Pair, ...] = (
    DEMO,
    STARTER_PAIR,
    STARTER_LONG_PAIR,
    Pair(
        "qwen3-1.7b",
        "Qwen 3 1.7B",
        Model("Qwen/Qwen3-1.7B", ModelShape(28, 8, 128, 1_720_574_976, 4_063_479_808, 40_960, 311_164_928), _APACHE),
        None,
        "The smallest that answers in its own words: for machines without a GPU.",
        _TINY,
    ),
    Pair(
        "exaone-4.0-1.2b",
        "EXAONE 4.0 1.2B",
        Model(
            "LGAI-EXAONE/EXAONE-4.0-1.2B",
            ModelShape(30, 8, 64, 1_279_391_488, 2_558_782_976, 65_536, 209_715_200),
            "EXAONE AI Model License 1.2, not for business",
        ),
        None,
        "Small, in Korean, English and Spanish." + _COUNTED,
        _TINY,
    ),
    Pair(
        "lfm2-1.2b",
        "LFM2 1.2B",
        Model(
            "LiquidAI/LFM2-1.2B",
            ModelShape(
                *(16, 8, 64, 1_170_340_608, 2_340_681_216, 32_768, 134_217_728),
                recurrent_layers=10,
                state=StateSize(0, 0, 0, 2048, 3),
            ),
            _LFM,
        ),
        None,
        "Made for machines without a GPU. " + _CONVOLVES + _COUNTED,
        _TINY,
    ),
    Pair(
        "qwen3.5-2b",
        "Qwen 3.5 2B",
        Model(
            "Qwen/Qwen3.5-2B",
            ModelShape(
                *(24, 2, 256, 1_881_825_088, 3_763_650_176, 262_144, 508_559_360),
                recurrent_layers=18,
                state=_STATE_16,
            ),
            _APACHE,
        ),
        None,
        "The smallest with a window for the longest novels. Its eyes are not loaded. " + _STATES + _COUNTED,
        _TINY,
    ),
    Pair(
        "lfm2-2.6b",
        "LFM2 2.6B",
        Model(
            "LiquidAI/LFM2-2.6B",
            ModelShape(
                *(30, 8, 64, 2_569_272_320, 5_138_544_640, 32_768, 134_217_728),
                recurrent_layers=22,
                state=StateSize(0, 0, 0, 2048, 3),
            ),
            _LFM,
        ),
        None,
        "The same with better answers. " + _CONVOLVES + _COUNTED,
        _TINY,
    ),
    Pair(
        "granite-4.0-h-micro",
        "Granite 4.0 H Micro",
        Model(
            "ibm-granite/granite-4.0-h-micro",
            ModelShape(
                *(40, 8, 64, 3_191_396_096, 6_382_792_192, 131_072, 205_520_896),
                recurrent_layers=36,
                state=StateSize(64, 128, 64, 4352, 4),
            ),
            _APACHE,
        ),
        None,
        "It answers without thinking aloud first. " + _ONE_OF_TEN + _COUNTED,
        _TINY,
    ),
    Pair(
        "granite-4.1-3b",
        "Granite 4.1 3B",
        Model(
            "ibm-granite/granite-4.1-3b",
            ModelShape(40, 8, 64, 3_402_836_480, 6_805_672_960, 131_072, 256_901_120),
            _APACHE,
        ),
        None,
        "Half the cache of others of its size, and it answers without thinking aloud first.",
        _TINY,
    ),
    Pair(
        "smollm3-3b",
        "SmolLM3 3B",
        Model(
            "HuggingFaceTB/SmolLM3-3B",
            ModelShape(36, 4, 128, 3_075_098_624, 6_150_197_248, 65_536, 262_668_288),
            _APACHE,
        ),
        None,
        "A small cache, and all of its training is public.",
        _TINY,
    ),
    Pair(
        "ministral-3-3b",
        "Ministral 3 3B Instruct",
        _MINISTRAL_3B,
        None,
        "Eleven languages and a very long window. Its eyes are not loaded.",
        _TINY,
    ),
    Pair(
        "phi-4-mini",
        "Phi-4 mini Instruct",
        Model(
            "microsoft/Phi-4-mini-instruct",
            ModelShape(32, 8, 128, 3_836_021_760, 7_672_066_216, 131_072, 614_596_608),
            "MIT",
        ),
        None,
        "A small model with a long window.",
        _TINY,
    ),
    Pair(
        "qwen3-4b",
        "Qwen 3 4B Instruct",
        Model(
            "Qwen/Qwen3-4B-Instruct-2507",
            ModelShape(36, 8, 128, 4_022_468_096, 8_044_982_080, 262_144, 388_956_160),
            _APACHE,
        ),
        _QWEN_3_06B,
        "A good first choice: no account needed, and a window for the longest novels.",
        _TINY,
    ),
    Pair(
        "qwen3.5-4b",
        "Qwen 3.5 4B",
        Model(
            "Qwen/Qwen3.5-4B",
            ModelShape(
                *(32, 4, 256, 4_205_751_296, 8_411_502_592, 262_144, 635_699_200),
                recurrent_layers=24,
                state=_STATE_32,
            ),
            _APACHE,
        ),
        _QWEN_35_08B,
        "Newer, with a fifth of the cache. Its eyes are not loaded. " + _STATES + _COUNTED,
        _TINY,
    ),
    Pair(
        "gemma-3-270m",
        "Gemma 3 270M",
        _GEMMA_3_270M,
        None,
        "For trying out: the smallest of its family. " + _WINDOWS + _ASKS,
        _REAL,
    ),
    Pair(
        "gemma-3-1b",
        "Gemma 3 1B",
        Model(
            "google/gemma-3-1b-it",
            ModelShape(26, 1, 256, 999_885_952, 1_999_811_208, 32_768, 301_989_888, 22, 512),
            _GEMMA,
            gated=True,
        ),
        None,
        "Small, and with the smallest cache of this list. " + _WINDOWS + _ASKS,
        _REAL,
    ),
    Pair(
        "gemma-3-4b",
        "Gemma 3 4B",
        Model(
            "google/gemma-3-4b-it",
            ModelShape(34, 4, 256, 3_880_263_168, 8_600_199_000, 131_072, 671_252_480, 29, 1024),
            _GEMMA,
            gated=True,
        ),
        _GEMMA_3_270M,
        "A long window with a small cache, in 140 languages. Its eyes are not loaded. " + _WINDOWS + _ASKS,
        _REAL,
    ),
    Pair(
        "gemma-3-12b",
        "Gemma 3 12B",
        Model(
            "google/gemma-3-12b-it",
            ModelShape(48, 8, 256, 11_766_034_176, 24_374_713_000, 131_072, 1_006_878_720, 40, 1024),
            _GEMMA,
            gated=True,
        ),
        _GEMMA_3_270M,
        "The same with better answers. Its eyes are not loaded. " + _WINDOWS + _ASKS,
        _REAL,
    ),
    Pair(
        "gemma-4-e2b",
        "Gemma 4 E2B",
        Model(
            "google/gemma-4-E2B-it",
            ModelShape(
                *(35, 1, 512, 4_628_569_344, 9_257_138_688, 131_072, 2_765_225_984, 12, 512),
                asked=2_265_710_569,
                sliding_kv=(1, 256),
                sharing_layers=20,
                full_sharing=4,
                inputs=2_362_572_800,
            ),
            _APACHE,
        ),
        None,
        "A long window with the smallest cache of its size, in 140 languages. "
        + _SHARES.format("2.3")
        + _COUNTED.strip(),
        _TINY,
    ),
    Pair(
        "gemma-4-e4b",
        "Gemma 4 E4B",
        Model(
            "google/gemma-4-E4B-it",
            ModelShape(
                *(42, 2, 512, 7_463_013_376, 14_926_026_752, 131_072, 3_517_186_048, 20, 512),
                asked=4_616_355_826,
                sliding_kv=(2, 256),
                sharing_layers=18,
                full_sharing=3,
                inputs=2_846_097_408,
            ),
            _APACHE,
        ),
        None,
        "The same with better answers. " + _SHARES.format("4.6") + _COUNTED.strip(),
        _TINY,
    ),
    Pair(
        "llama-3.1-8b",
        "Llama 3.1 8B Instruct",
        Model(
            "meta-llama/Llama-3.1-8B-Instruct",
            ModelShape(32, 8, 128, 8_030_261_248, 16_060_556_376, 131_072, 1_050_673_152),
            _LLAMA_31,
            gated=True,
        ),
        _LLAMA_32_1B,
        "Strong on whole books." + _ASKS,
        _REAL,
    ),
    Pair(
        "granite-4.0-h-tiny",
        "Granite 4.0 H Tiny",
        Model(
            "ibm-granite/granite-4.0-h-tiny",
            ModelShape(
                *(40, 4, 128, 6_939_037_248, 13_878_074_496, 131_072, 154_140_672),
                recurrent_layers=36,
                state=StateSize(48, 128, 64, 3328, 4),
                asked=1_465_171_952,
            ),
            _APACHE,
        ),
        None,
        "The quickest of its size, also without a GPU. " + _FEW_ASKED + " " + _ONE_OF_TEN,
        _TINY,
    ),
    Pair(
        "lfm2-8b-a1b",
        "LFM2 8B-A1B",
        Model(
            "LiquidAI/LFM2-8B-A1B",
            ModelShape(
                *(24, 8, 64, 8_339_929_856, 16_679_859_712, 32_768, 134_217_728),
                recurrent_layers=18,
                state=StateSize(0, 0, 0, 2048, 3),
                asked=1_557_639_152,
            ),
            _LFM,
        ),
        None,
        "The best of its family. " + _FEW_ASKED + " " + _CONVOLVES + _COUNTED,
        _TINY,
    ),
    Pair(
        "olmo-3-7b",
        "OLMo 3 7B Instruct",
        Model(
            "allenai/Olmo-3-7B-Instruct",
            ModelShape(32, 32, 128, 7_298_011_136, 14_596_022_272, 65_536, 821_477_376, 24, 4096),
            _APACHE,
        ),
        None,
        "All of its training is public. " + _THREE_OF_FOUR + _COUNTED,
        _TINY,
    ),
    Pair(
        "command-r7b",
        "Command R7B",
        Model(
            "CohereLabs/c4ai-command-r7b-12-2024",
            ModelShape(32, 8, 128, 8_028_033_024, 16_056_066_048, 132_096, 1_048_576_000, 24, 4096),
            "CC BY-NC 4.0, not for business",
            gated=True,
        ),
        None,
        "Made for answers from documents, in 23 languages, with a small cache. " + _THREE_OF_FOUR + _COUNTED + _ASKS,
        _TINY,
    ),
    Pair(
        "ministral-3-8b",
        "Ministral 3 8B Instruct",
        Model(
            "mistralai/Ministral-3-8B-Instruct-2512-BF16",
            ModelShape(34, 8, 128, 8_489_553_920, 17_836_000_000, 262_144, 1_073_741_824),
            _APACHE,
        ),
        None,
        "Eleven languages and a very long window. Its eyes are not loaded.",
        _TINY,
    ),
    Pair(
        "qwen3.5-9b",
        "Qwen 3.5 9B",
        Model(
            "Qwen/Qwen3.5-9B",
            ModelShape(
                *(32, 4, 256, 8_953_803_264, 17_907_606_528, 262_144, 2_034_237_440),
                recurrent_layers=24,
                state=_STATE_32,
            ),
            _APACHE,
        ),
        _QWEN_35_08B,
        "What most people with 24 GB use in 2026. Its eyes are not loaded. " + _STATES + _COUNTED,
        _TINY,
    ),
    Pair(
        "granite-4.1-8b",
        "Granite 4.1 8B",
        Model(
            "ibm-granite/granite-4.1-8b",
            ModelShape(40, 8, 128, 8_791_592_960, 17_583_185_920, 131_072, 822_083_584),
            _APACHE,
        ),
        None,
        "A long window, twelve languages; it answers without thinking aloud first.",
        _TINY,
    ),
    Pair(
        "glm-4-9b",
        "GLM-4 9B Chat",
        Model(
            "zai-org/glm-4-9b-chat-hf",
            ModelShape(40, 2, 128, 9_399_951_360, 18_799_902_720, 131_072, 1_241_513_984),
            "GLM-4 License",
        ),
        None,
        "Of 2024, with a quarter of the cache of others of its size: the longest books on 24 GB.",
        _TINY,
    ),
    Pair(
        "qwen2.5-7b-1m",
        "Qwen 2.5 7B Instruct 1M",
        Model(
            "Qwen/Qwen2.5-7B-Instruct-1M",
            ModelShape(28, 4, 128, 7_615_616_512, 15_231_271_888, _TRAINED_1M, 1_089_994_752),
            _APACHE,
        ),
        _QWEN_25_05B,
        "The smallest cache per token of its size: the longest books on a given machine, up to the length that its "
        "makers trained it on.",
        _TINY,
    ),
    Pair(
        "qwen2.5-14b-1m",
        "Qwen 2.5 14B Instruct 1M",
        Model(
            "Qwen/Qwen2.5-14B-Instruct-1M",
            ModelShape(48, 8, 128, 14_770_033_664, 29_540_134_992, _TRAINED_1M, 1_557_135_360),
            _APACHE,
        ),
        _QWEN_25_05B,
        "Better answers than 7B for twice the memory.",
        _TINY,
    ),
    Pair(
        "ministral-3-14b",
        "Ministral 3 14B Instruct",
        Model(
            "mistralai/Ministral-3-14B-Instruct-2512-BF16",
            ModelShape(40, 8, 128, 13_506_073_600, 27_900_000_000, 262_144, 1_342_177_280),
            _APACHE,
        ),
        _MINISTRAL_3B,
        "The largest of its family, with the smallest guessing for it. Its eyes are not loaded.",
        _TINY,
    ),
    Pair(
        "gpt-oss-20b",
        "gpt-oss 20B",
        Model(
            "openai/gpt-oss-20b",
            ModelShape(
                *(24, 8, 64, 20_914_757_184, 13_761_000_000, 131_072, 1_158_266_880, 12, 128),
                asked=4_186_275_840,
                expanded=True,
            ),
            _APACHE,
        ),
        None,
        "Thinks aloud first. Every second layer sees the newest 128 tokens alone. Its files hold 4 bits, which are "
        "expanded to three times as much, or rounded to 4 or 8 bits as they are loaded. " + _FEW_ASKED,
        _TINY,
    ),
    Pair(
        "qwen3.5-27b",
        "Qwen 3.5 27B",
        Model(
            "Qwen/Qwen3.5-27B",
            ModelShape(
                *(64, 4, 256, 26_895_998_464, 53_791_996_928, 262_144, 2_542_796_800),
                recurrent_layers=48,
                state=_STATE_48,
            ),
            _APACHE,
        ),
        _QWEN_35_08B,
        "The largest of its family whose every weight answers. Its eyes are not loaded. " + _STATES + _COUNTED,
        _TINY,
    ),
    Pair(
        "gemma-4-26b-a4b",
        "Gemma 4 26B-A4B",
        Model(
            "google/gemma-4-26B-A4B-it",
            ModelShape(
                *(30, 2, 512, 25_233_141_760, 50_466_283_520, 262_144, 738_197_504, 25, 1024),
                asked=3_821_830_124,
                sliding_kv=(8, 256),
            ),
            _APACHE,
        ),
        None,
        "A very long window with a small cache. Its eyes are not loaded. " + _FEW_ASKED + " " + _WINDOWS + _COUNTED,
        _TINY,
    ),
    Pair(
        "gemma-4-31b",
        "Gemma 4 31B",
        Model(
            "google/gemma-4-31B-it",
            ModelShape(
                *(60, 4, 512, 30_697_345_280, 61_394_690_560, 262_144, 1_409_286_144, 50, 1024), sliding_kv=(16, 256)
            ),
            _APACHE,
        ),
        None,
        "The largest of its family, whose every weight answers. Its eyes are not loaded. " + _WINDOWS + _COUNTED,
        _TINY,
    ),
    Pair(
        "qwen3-30b-a3b",
        "Qwen 3 30B-A3B Instruct",
        Model(
            "Qwen/Qwen3-30B-A3B-Instruct-2507",
            ModelShape(
                *(48, 4, 128, 30_532_122_624, 61_064_245_248, 262_144, 622_329_856),
                asked=3_352_821_760,
            ),
            _APACHE,
        ),
        None,
        "For machines with much memory and no large GPU. " + _FEW_ASKED + _COUNTED,
        _TINY,
    ),
    Pair(
        "granite-4.0-h-small",
        "Granite 4.0 H Small",
        Model(
            "ibm-granite/granite-4.0-h-small",
            ModelShape(
                *(40, 8, 128, 32_207_337_984, 64_414_675_968, 131_072, 411_041_792),
                recurrent_layers=36,
                state=StateSize(128, 128, 64, 8448, 4),
                asked=8_802_340_832,
            ),
            _APACHE,
        ),
        None,
        "The large one of its family. " + _FEW_ASKED + " " + _ONE_OF_TEN,
        _TINY,
    ),
    Pair(
        "qwen3.5-35b-a3b",
        "Qwen 3.5 35B-A3B",
        Model(
            "Qwen/Qwen3.5-35B-A3B",
            ModelShape(
                *(40, 2, 256, 34_660_610_688, 69_321_221_376, 262_144, 1_017_118_720),
                recurrent_layers=30,
                state=_STATE_32,
                asked=3_454_812_160,
            ),
            _APACHE,
        ),
        None,
        "The same of Qwen 3.5. Its eyes are not loaded. " + _FEW_ASKED + " " + _STATES + _COUNTED,
        _TINY,
    ),
    Pair(
        "seed-oss-36b",
        "Seed-OSS 36B Instruct",
        Model(
            "ByteDance-Seed/Seed-OSS-36B-Instruct",
            ModelShape(64, 8, 128, 36_151_104_512, 72_302_209_024, 524_288, 1_588_592_640),
            _APACHE,
        ),
        None,
        "The largest of this list, with a window of half a million tokens.",
        _TINY,
    ),
    Pair(
        "qwen3-8b",
        "Qwen 3 8B",
        Model("Qwen/Qwen3-8B", ModelShape(36, 8, 128, 8_190_735_360, 16_381_516_512, 40_960, 1_244_659_712), _APACHE),
        _QWEN_3_06B,
        "For shorter books. Its makers' YaRN setting for 131,072 tokens goes into config.json of a copy of yours.",
        _TINY,
    ),
    Pair(
        "phi-3-mini",
        "Phi-3 mini 128K Instruct",
        Model(
            "microsoft/Phi-3-mini-128k-instruct",
            ModelShape(32, 32, 96, 3_821_079_552, 7_642_181_896, 131_072, 197_001_216),
            "MIT",
        ),
        None,
        "Small weights and a large cache. It has no smaller sibling: guesses come from the book's own words.",
        _TINY,
    ),
    Pair(
        "lwm-7b",
        "LWM Text Chat 128K",
        Model(
            "LargeWorldModel/LWM-Text-Chat-128K",
            ModelShape(32, 32, 128, 6_738_415_616, 13_476_839_424, 131_072, 262_144_000),
            _LLAMA_2,
        ),
        _LLAMA_68M,
        "A model of the paper that Trifold builds on, with a very large cache." + OLD,
        _REAL,
    ),
    Pair(
        "yarn-7b",
        "Yarn Llama 2 7B 128K",
        Model(
            "NousResearch/Yarn-Llama-2-7b-128k",
            ModelShape(32, 32, 128, 6_738_415_616, 13_476_839_424, 131_072, 262_144_000),
            _LLAMA_2,
        ),
        _LLAMA_68M,
        "The paper's main model: it continues texts and was not taught to chat." + OLD,
        _REAL,
    ),
    Pair(
        "yarn-13b",
        "Yarn Llama 2 13B 128K",
        Model(
            "NousResearch/Yarn-Llama-2-13b-128k",
            ModelShape(40, 40, 128, 13_015_864_320, 26_031_738_880, 131_072, 327_680_000),
            _LLAMA_2,
        ),
        _LLAMA_68M,
        "The paper's large model: it continues texts and was not taught to chat." + OLD,
        _REAL,
    ),
)


def find(target: str, draft: str | None) -> Pair | None:
    """The pair of these two names."""
    return next((pair for pair in PAIRS if pair.names == (target, draft)), None)


def known(name: str) -> Model | None:
    """What the catalogue knows about one model."""
    models = [model for pair in PAIRS for model in (pair.target, pair.draft) if model]
    return next((model for model in models if model.name == name), None)
