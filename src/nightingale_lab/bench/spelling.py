"""One spelling for words that sound the same and are written two ways; and short forms with their long ones.

Tables, not cleverness: a pair stands here only if no listener could hear the difference.
"""

from __future__ import annotations

import re

_OUR = (
    "arm behavi cand clam col demean endeav fav ferv flav glam harb hon hum lab neighb od parl ranc rum sav"
)
_OUR += " savi splend tum val vap vig"
_DOUBLED = "cancel counsel dial equal fuel jewel label level marvel model panel quarrel rival signal travel"
_DOUBLED += " tunnel unravel"
_PAIRS = """axe ax|centre center|centres centers|theatre theater|theatres theaters|metre meter|metres meters
litre liter|litres liters|kilometre kilometer|kilometres kilometers|centimetre centimeter
centimetres centimeters|fibre fiber|calibre caliber|spectre specter|sombre somber|grey gray
greyish grayish|tyre tire|tyres tires|plough plow|ploughed plowed|programme program
programmes programs|cheque check|cheques checks|kerb curb|defence defense|offence offense
licence license|practise practice|practised practiced|pretence pretense|jewellery jewelry
moustache mustache|pyjamas pajamas|sceptical skeptical|storey story|sulphur sulfur|mould mold
moult molt|smoulder smolder|draught draft|draughts drafts|gaol jail|catalogue catalog
dialogue dialog|analogue analog|enrol enroll|fulfil fulfill|skilful skillful|wilful willful
instalment installment|judgement judgment|acknowledgement acknowledgment|ageing aging
likeable likable|cosy cozy|doughnut donut|okay ok|manoeuvre maneuver|encyclopaedia encyclopedia
mediaeval medieval|archaeology archeology|artefact artifact|yoghurt yogurt|whisky whiskey
omelette omelet|mister mr|missus mrs|doctor dr|versus vs|professor prof|percent pct|alright allright
racquet racket|wagon waggon|woollen woolen|marvellous marvelous|counsellor counselor
traveller traveler|travellers travelers
"""


def _table() -> dict[str, str]:
    table: dict[str, str] = {}
    for pair in re.split(r"[|\n]", _PAIRS.strip()):
        spelling, kept = pair.split()
        table[spelling] = kept
    for stem in _OUR.split():
        for end in ("", "s", "ed", "ing", "able", "ite", "ites", "ful", "hood", "less"):
            table[f"{stem}our{end}"] = f"{stem}or{end}"
    for stem in _DOUBLED.split():
        for end in ("ed", "ing", "er", "ers"):
            table[f"{stem}l{end}"] = f"{stem}{end}"
    return table


SPELLINGS = _table()

_ISE = re.compile(r"^([a-z]{3,})(is|ys)(e|es|ed|er|ers|ing|ation|ations)$")

EXPANSIONS: dict[str, tuple[str, ...]] = {
    "won't": ("willnot",),
    "can't": ("cannot",),
    "shan't": ("shallnot",),
    "let's": ("letus",),
    "st": ("saint", "street"),
    "km": ("kilometer", "kilometers"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "kg": ("kilogram", "kilograms", "kilo", "kilos"),
    "lb": ("pound", "pounds"),
    "lbs": ("pounds",),
    "ft": ("foot", "feet"),
    "oz": ("ounce", "ounces"),
    "mph": ("milesperhour", "milesanhour"),
    "etc": ("etcetera",),
    "jan": ("january",),
    "feb": ("february",),
    "aug": ("august",),
    "sept": ("september",),
    "oct": ("october",),
    "nov": ("november",),
    "dec": ("december",),
}
"""Short form -> what it may be spoken as, letters only."""

ENDINGS = {
    "n't": ("not",),
    "'m": ("am",),
    "'re": ("are",),
    "'ve": ("have",),
    "'ll": ("will",),
    "'d": ("would", "had"),
    "'s": ("is", "has"),
}
"""Contracted ending -> its full words."""


def canonical(word: str) -> str:
    """The one spelling kept of a word in lower case; apostrophes do not sound."""
    plain = word.replace("'", "")
    if plain in SPELLINGS:
        return SPELLINGS[plain]
    if match := _ISE.match(plain):
        return f"{match[1]}{match[2][0]}z{match[3]}"
    return plain


def spoken_forms(word: str) -> set[str]:
    """Every run of letters that may stand for this word."""
    forms = {canonical(word), *EXPANSIONS.get(word, ())}
    for ending, full in ENDINGS.items():
        if word.endswith(ending) and len(word) > len(ending):
            forms |= {canonical(word.removesuffix(ending)) + rest for rest in full}
    return forms
