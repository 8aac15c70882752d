"""Normalization of signs whose reading depends on their context."""

from __future__ import annotations

import pytest

from nightingale.text.english import normalize
from nightingale.text.sentences import split_sentences

STOPS = [
    ("I live in the U.S. He does not.", "I live in the U S. He does not."),
    ("He lives in the U. S. He likes it.", "He lives in the U S. He likes it."),
    ("He moved to the U.S. In March 2010 he left.", "He moved to the U S. In March twenty ten he left."),
    ("He lives in the U.S. Do you?", "He lives in the U S. Do you?"),
    ("We flew to the U.S. I slept.", "We flew to the U S. I slept."),
    ("She got an M.B.A. A year later she quit.", "She got an M B A. A year later she quit."),
    ("It was in Washington, D.C. But why?", "It was in Washington, D C. But why?"),
    ("He works for Apple Inc. They make phones.", "He works for Apple Incorporated. They make phones."),
    ("He has a Ph.D. She has two.", "He has a P H D. She has two."),
    ("Here is John Smith Jr. He was late.", "Here is John Smith Junior. He was late."),
    ("He read about Malcolm X. He was moved.", "He read about Malcolm X. He was moved."),
    ('"I live in the U.S." He left.', '"I live in the U S." He left.'),
    ("It is made in the U.S. (It says so.)", "It is made in the U S. (It says so.)"),
    ("He has a Ph.D. At 25, he taught.", "He has a P H D. At twenty-five, he taught."),
    ('"Where?" "In the U.K." "Oh."', '"Where?" "In the U K." "Oh."'),
    ("They sell pens, etc. Anna buys them.", "They sell pens, et cetera. Anna buys them."),
]

NO_STOPS = [
    ("The U.S. Senate met.", "The U S Senate met."),
    ("She won the U.S. Open.", "She won the U S Open."),
    ("U.S. In Talks With Iran", "U S In Talks With Iran"),
    ("the U.S. I Corps", "the U S I Corps"),
    ("Bands, e.g. The Beatles, came.", "Bands, for example The Beatles, came."),
    ("The Beatles vs. The Stones", "The Beatles versus The Stones"),
    ("P.S. I miss you.", "P S I miss you."),
    ("Ask Dr. He about it.", "Ask Doctor He about it."),
    ("I know Mr. In and Prof. You.", "I know Mister In and Professor You."),
    ("Martin Luther King Jr. Day", "Martin Luther King Junior Day"),
    ("Samuel L. Jackson", "Samuel L Jackson"),
]

STREETS = [
    ("We met on Main St. It was late.", "We met on Main Street. It was late."),
    ("We met on Main St. around noon.", "We met on Main Street around noon."),
    ("He moved to Fifth Ave. She stayed.", "He moved to Fifth Avenue. She stayed."),
    ("He lives at 22 Elm Dr. The house is red.", "He lives at twenty-two Elm Drive. The house is red."),
    ("We were at 1600 Elm Dr. It was late.", "We were at sixteen hundred Elm Drive. It was late."),
    ("We drove up Elm Dr. until dawn.", "We drove up Elm Drive until dawn."),
    ("I am at 5 Oak St. Call me.", "I am at five Oak Street, Call me."),
    ("Rodeo Dr, Beverly Hills", "Rodeo Drive, Beverly Hills"),
    ("I met with Dr. and Mrs. Jones.", "I met with Doctor and Missus Jones."),
    ("He went to St. Ives.", "He went to Saint Ives."),
]

LABELS = [
    ("see fig. 3 for more", "see figure three for more"),
    ("It is a map (fig. 3).", "It is a map (figure three)."),
    ("It is a map; fig. 3a shows it.", "It is a map; figure three a shows it."),
    ("In fig. 3 and fig. 4 we rest.", "In figure three and figure four we rest."),
    ("sec. 2 of the act", "section two of the act"),
    ("Read sec. 2 of the act.", "Read section two of the act."),
    ("art. 5 of the treaty", "article five of the treaty"),
    ("under art. 5 member states agree", "under article five member states agree"),
    ("Symphony no. 5 in C minor", "Symphony number five in C minor"),
    ("item no. 7", "item number seven"),
    ("item no. 7 sold out", "item number seven sold out"),
    ("Chanel No. 5", "Chanel number five"),
    ("vol. 3, no. 4", "volume three, number four"),
    ("the no. 1 song", "the number one song"),
    ("Britain's no. 2 bank", "Britain's number two bank"),
    ("a no. 2 pencil", "a number two pencil"),
    ("He is no. 1 in the world.", "He is number one in the world."),
    ("Who won? No. 3.", "Who won? number three."),
    ("born c. 1450", "born circa fourteen fifty"),
    ("~3:30pm", "about three thirty P M"),
]

WORDS_BEFORE_FIGURES = [
    ("The answer is no. 2 days later he left.", "The answer is no. two days later he left."),
    ("The answer is no. 2 or 3 days later he left.", "The answer is no. two or three days later he left."),
    ("The answer is no. $5 is too much.", "The answer is no. five dollars is too much."),
    ("That's a no. 2 days later he left.", "That's a no. two days later he left."),
    ("Say yes or no. 5 people have.", "Say yes or no. five people have."),
    ("Is that all? No. 3 more came.", "Is that all? No. three more came."),
    ("I like modern art. 5 paintings hung there.", "I like modern art. five paintings hung there."),
    ("I believe in art. 5 paintings hung there.", "I believe in art. five paintings hung there."),
    ("I saw his art. 3 of them are dead.", "I saw his art. three of them are dead."),
    ("Give me a sec. 5 minutes is too long.", "Give me a sec. five minutes is too long."),
    ("Give me a sec. 5 is too many.", "Give me a sec. five is too many."),
    ("I ate a fig. 3 more are left.", "I ate a fig. three more are left."),
]

MONEY_SPANS = [
    ("$10-$20 million", "ten to twenty million dollars"),
    ("$10–$20 million", "ten to twenty million dollars"),
    ("$10 to $20 million", "ten to twenty million dollars"),
    ("between $5 and $10 million", "between five and ten million dollars"),
    ("between $5 and $10", "between five dollars and ten dollars"),
    ("$5-10k", "five to ten thousand dollars"),
    ("$500k-1M", "five hundred thousand to one million dollars"),
    ("US$1-2 billion", "one to two billion U S dollars"),
    ("$5-$10", "five dollars to ten dollars"),
    ("$1.50-2.00", "one dollar and fifty cents to two dollars"),
    ("$100-200/night", "one hundred to two hundred dollars per night"),
    ("$70/barrel", "seventy dollars per barrel"),
    ("It costs $5 to 10.", "It costs five to ten dollars."),
    ("I gave $5 to 10 people.", "I gave five dollars to ten people."),
    ("He has $5 and $10 million in debts.", "He has five dollars and ten million dollars in debts."),
]

MONEY_DESCRIBING = [
    ("A $100 bill fell.", "A one hundred dollar bill fell."),
    ("I paid $100 yesterday.", "I paid one hundred dollars yesterday."),
    ("I took $100 home.", "I took one hundred dollars home."),
    ("the $100 she owed me", "the one hundred dollars she owed me"),
    ("the $64,000 question", "the sixty-four thousand dollar question"),
    ("two $20 bills", "two twenty dollar bills"),
    ("a £5 note", "a five pound note"),
    ("a $5 million house", "a five million dollar house"),
    ("a $5-10 million deal", "a five to ten million dollar deal"),
    ("the $1.2 trillion infrastructure bill", "the one point two trillion dollar infrastructure bill"),
    ("a $5.99 deal", "a five dollar and ninety-nine cent deal"),
    ("a $20-a-month plan", "a twenty dollar-a-month plan"),
    ("The $50-million project", "The fifty million dollar project"),
    ("It is worth $50-million.", "It is worth fifty million dollars."),
    ("$200 a year", "two hundred dollars a year"),
]

CLOCK_STOPS = [
    ("It hit at 4:15 a.m. Tuesday.", "It hit at four fifteen A M Tuesday."),
    ("It ends at 6 p.m. March 3.", "It ends at six P M March third."),
    ("Call at 9 p.m. Eastern.", "Call at nine P M Eastern."),
    ("Call at 9 p.m. Pacific time.", "Call at nine P M Pacific time."),
    ("Call at 9 p.m. Central banks are shut.", "Call at nine P M. Central banks are shut."),
    ("It is 6 p.m. May I come in?", "It is six P M. May I come in?"),
    ("9 a.m.-6 p.m.", "nine A M to six P M."),
    ('"Come at 6 p.m." He left.', '"Come at six P M." He left.'),
]

DATE_SPANS = [
    ("June 5-7", "June fifth to seventh"),
    ("May 3–5, 2022", "May third to fifth, twenty twenty-two"),
    ("5-7 June 2020", "the fifth to the seventh of June, twenty twenty"),
    ("June 28-July 2", "June twenty-eighth to July second"),
    (
        "Dec. 30, 2020 – Jan. 2, 2021",
        "December thirtieth, twenty twenty to January second, twenty twenty-one",
    ),
    ("Jan.–Mar. 2020", "January to March twenty twenty"),
    ("2024/03/15", "March fifteenth, twenty twenty-four"),
    ("Mon.-Fri. 9-5", "Monday to Friday nine to five"),
]

SHORT_DAYS = [
    ("It starts in Sept.", "It starts in September."),
    ("It fell in Jan. and Feb. this time.", "It fell in January and February this time."),
    ("He left in Nov. She stayed.", "He left in November. She stayed."),
    ("See you on Thurs. at noon.", "See you on Thursday at noon."),
    ("See you on Sat. at noon.", "See you on Saturday at noon."),
    ("I met Jan. He was old.", "I met Jan. He was old."),
    ("I read the Sun. He read on.", "I read the Sun. He read on."),
]

UNIT_STOPS = [
    ("It's 5 ft. tall and 6 in. wide.", "It's five feet tall and six inches wide."),
    ("He is 5 ft. He grows.", "He is five feet. He grows."),
    ("3 lbs. of beef", "three pounds of beef"),
    ("It runs 2 hrs. 15 min. in all.", "It runs two hours fifteen minutes in all."),
    ("2,400 sq. ft. of floor", "two thousand four hundred square feet of floor"),
    ("2 tbsp. of oil and 1 tsp salt", "two tablespoons of oil and one teaspoon salt"),
    ("1/2 tsp salt", "one half teaspoon salt"),
    ("3/4 km", "three quarters kilometer"),
    ("a 1/2 in. pipe", "a one half inch pipe"),
    ("2½ tbsp oil", "two and a half tablespoons oil"),
]

NUMERALS = [
    ("Louis C.K. spoke.", "Louis C K spoke."),
    ("Louis L'Amour wrote.", "Louis L'Amour wrote."),
    ("Louis V. Gerstner", "Louis V Gerstner"),
    ("Henry V. He was king.", "Henry the fifth. He was king."),
    ("Artemis II will fly.", "Artemis two will fly."),
    ("CHAPTER XIV.", "CHAPTER fourteen."),
    ("CHAPTER II", "CHAPTER two"),
    ("CHAPTER I THE BEGINNING", "CHAPTER one THE BEGINNING"),
    ("CHAPTER I\n\nIt was night.", "CHAPTER one. It was night."),
    ("CHAPTER XXVII. IT IS US", "CHAPTER twenty-seven. IT IS US"),
    ("PART II", "PART two"),
    ("BOOK III.", "BOOK three."),
    ("ACT I. SCENE II.", "ACT one. SCENE two."),
    ("THE LAST BOOK I READ", "THE LAST BOOK I READ"),
    ("Part C of the form", "Part C of the form"),
    ("Chapter L", "Chapter fifty"),
    ("Vol. II", "Volume two"),
    ("VOL. II.", "VOLUME two."),
    ("see vol. I, p. 3", "see volume one, page three"),
    ("He read Vol. II. It was long.", "He read Volume two. It was long."),
    ("Chap. XII", "Chapter twelve"),
    ("Pt. II", "Part two"),
    ("Art. II of it", "Article two of it"),
    ("Hello, old chap. I am late.", "Hello, old chap. I am late."),
    ("Give me a sec. I see.", "Give me a sec. I see."),
]

TIMESTAMPS = [
    ("2023-10-05T14:30:00Z", "October fifth, twenty twenty-three at fourteen thirty U T C"),
    (
        "2023-10-05T09:05:07+02:00",
        "October fifth, twenty twenty-three at nine oh five and seven seconds U T C plus two",
    ),
    ("2023-10-05T14:30:00.123.", "October fifth, twenty twenty-three at fourteen thirty."),
    ("2023-10-05T14:30", "October fifth, twenty twenty-three at fourteen thirty"),
    ("12:34:00", "twelve thirty-four"),
]

VERSES = [
    ("Psalm 23:4", "Psalm twenty-three verse four"),
    ("Ps. 23:4-6 is short.", "Psalm twenty-three verse four to six is short."),
    ("Gen. 1:1", "Genesis one one"),
    ("1 Corinthians 13:4–7", "First Corinthians thirteen four to seven"),
    ("Meet Mark 10:30 pm.", "Meet Mark ten thirty P M."),
    ("Peter won 3:1.", "Peter won three to one."),
]

TAKEN_AWAY = [
    ("5 − 3", "five minus three"),
    ("5−3=2", "five minus three equals two"),
    ("n−1", "n minus one"),
    ("(a + b) − c", "(a plus b) minus c"),
]

YEARS_IN_BRACKETS = [
    ("the battle (1066)", "the battle (ten sixty-six)"),
    ("(Smith, 1866)", "(Smith, eighteen sixty-six)"),
    ("a few (1500 people)", "a few (one thousand five hundred people)"),
]

UNITS_PER_UNIT = [
    ("5 kg/m³", "five kilograms per cubic meter"),
    ("100 W/m²", "one hundred watts per square meter"),
    ("9.8 m/s²", "nine point eight meters per second squared"),
    ("2 mg/L", "two milligrams per liter"),
]

MILLIONS = [
    ("5m people", "five million people"),
    ("2.5m new users", "two point five million new users"),
    ("10k followers", "ten thousand followers"),
    ("3bn people", "three billion people"),
    ("It is 5m tall.", "It is five meters tall."),
    ("It is 5m away.", "It is five meters away."),
    ("It is 5m long.", "It is five meters long."),
]

DOLLARS = [
    ("HK$5", "five Hong Kong dollars"),
    ("A$5", "five Australian dollars"),
    ("C$1", "one Canadian dollar"),
    ("NZ$10", "ten New Zealand dollars"),
    ("S$5 million", "five million Singapore dollars"),
    ("5 HKD", "five Hong Kong dollars"),
    ("XX$5", "X X five dollars"),
]

GROUPED = [
    *(
        (f"1{space}234{space}567", "one million two hundred thirty-four thousand five hundred sixty-seven")
        for space in " \u00a0\u202f\u2009"
    ),
    ("5\u202f280 feet", "five thousand two hundred eighty feet"),
    ("10 000 people", "ten thousand people"),
    ("the numbers 5 280 are", "the numbers five two hundred eighty are"),
    ("10\u00a0km", "ten kilometers"),
]

ROWS = [
    *STOPS,
    *NO_STOPS,
    *STREETS,
    *LABELS,
    *WORDS_BEFORE_FIGURES,
    *MONEY_SPANS,
    *MONEY_DESCRIBING,
    *CLOCK_STOPS,
    *DATE_SPANS,
    *SHORT_DAYS,
    *UNIT_STOPS,
    *NUMERALS,
    *TIMESTAMPS,
    *VERSES,
    *TAKEN_AWAY,
    *YEARS_IN_BRACKETS,
    *UNITS_PER_UNIT,
    *MILLIONS,
    *DOLLARS,
    *GROUPED,
]


@pytest.mark.parametrize(("written", "said"), ROWS)
def test_the_reading_depends_on_the_context(written: str, said: str) -> None:
    assert normalize(written) == said


@pytest.mark.parametrize(("written", "said"), ROWS)
def test_normalized_text_is_unchanged(written: str, said: str) -> None:
    assert normalize(said) == said, written


def test_an_abbreviation_can_end_a_span() -> None:
    written = "My older brother lives in the U.S. We shall see him at 6 p.m. The bus to the airport is late."
    assert [span.text for span in split_sentences(normalize(written), 220)] == [
        "My older brother lives in the U S.",
        "We shall see him at six P M.",
        "The bus to the airport is late.",
    ]


def test_no_row_occurs_twice() -> None:
    assert len({written for written, _ in ROWS}) == len(ROWS)
