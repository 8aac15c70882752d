"""Check one sentence in each language of a model: its text ids, and that it makes audio."""

from __future__ import annotations

from functools import partial

from nightingale.clocks import CLOCKS
from nightingale.errors import LanguagePackageMissing, NightingaleError
from nightingale_lab.bench.verify.check import Check, missing
from nightingale_lab.bench.verify.subject import Subject

GROUP = "languages"
check = partial(Check, GROUP)
SEED = 31
LEAST_SECONDS, MOST_SECONDS = 0.6, 12.0
"""A person needs about two to four seconds for each sentence."""
QUIETEST = 1e-3
"""Root mean square below which a clip is silence."""

SENTENCES = {
    "ar": "صباح الخير، كيف حالك اليوم؟",
    "da": "God morgen, hvordan har du det i dag?",
    "de": "Guten Morgen, wie geht es dir heute?",
    "el": "Καλημέρα, πώς είσαι σήμερα;",
    "en": "Good morning, how are you today?",
    "es": "Buenos días, ¿cómo estás hoy?",
    "fi": "Hyvää huomenta, mitä sinulle kuuluu tänään?",
    "fr": "Bonjour, comment allez-vous aujourd'hui ?",
    "he": "בוקר טוב, מה שלומך היום?",
    "hi": "सुप्रभात, आज आप कैसे हैं?",
    "it": "Buongiorno, come stai oggi?",
    "ja": "おはようございます、今日はお元気ですか。",
    "ko": "좋은 아침입니다, 오늘 기분이 어떠세요?",
    "ms": "Selamat pagi, apa khabar hari ini?",
    "nl": "Goedemorgen, hoe gaat het vandaag met je?",
    "no": "God morgen, hvordan har du det i dag?",
    "pl": "Dzień dobry, jak się dziś masz?",
    "pt": "Bom dia, como você está hoje?",
    "ru": "Доброе утро, как у вас дела сегодня?",
    "sv": "God morgon, hur mår du idag?",
    "sw": "Habari za asubuhi, hujambo leo?",
    "tr": "Günaydın, bugün nasılsın?",
    "zh": "早上好,你今天好吗?",
}


def languages(subject: Subject) -> list[Check]:
    return [one for code in subject.languages for one in _language(subject, code)]


def _language(subject: Subject, code: str) -> list[Check]:
    text = SENTENCES.get(code)
    if text is None:
        return [missing(GROUP, code, "verify has no sentence in this language")]
    try:
        ids = subject.text_ids(text, code)
        audio = subject.say(text, seed=SEED, language=None if len(subject.languages) == 1 else code)
    except LanguagePackageMissing as error:
        return [missing(GROUP, code, error.fix or str(error))]
    except NightingaleError as error:
        return [check(f"{code}: errors", 1.0, high=0, detail=str(error))]
    unknown = sum(id_ == subject.unknown_text_id for id_ in ids)
    power = float((audio.samples.astype("float64") ** 2).mean()) if len(audio.samples) else 0.0
    audible = power**0.5 >= QUIETEST
    seconds = len(audio.samples) / CLOCKS.sample_rate_hz if audible else 0.0
    return [
        check(f"{code}: unknown text ids", float(unknown), high=0, detail=f"of {len(ids)}"),
        check(f"{code}: seconds of sound", seconds, low=LEAST_SECONDS, high=MOST_SECONDS, unit="s"),
    ]
