"""Tables of abbreviations and of words in capitals."""

from __future__ import annotations

from typing import Final

from nightingale.text.english.rule import listed

TITLES: Final = {
    "Dr": "Doctor", "Mr": "Mister", "Mrs": "Missus", "Ms": "Miz", "Prof": "Professor", "Gen": "General",
    "Col": "Colonel", "Capt": "Captain", "Cpt": "Captain", "Lt": "Lieutenant", "Sgt": "Sergeant",
    "Maj": "Major", "Cmdr": "Commander", "Adm": "Admiral", "Rev": "Reverend", "Hon": "Honorable",
    "Gov": "Governor", "Sen": "Senator", "Rep": "Representative", "Pres": "President",
    "Supt": "Superintendent", "Fr": "Father", "Mt": "Mount", "Ft": "Fort", "St": "Saint",
    "Messrs": "Messers", "Atty": "Attorney",
}  # fmt: skip
"""Expanded only before a name; most are too short to recognize without their full stop."""
TRUSTED_WITHOUT_STOP: Final = ("Dr", "Mr", "Mrs", "Ms")

STREETS: Final = {
    "St": "Street", "Ave": "Avenue", "Rd": "Road", "Blvd": "Boulevard", "Ln": "Lane", "Dr": "Drive",
    "Ct": "Court", "Pl": "Place", "Sq": "Square", "Hwy": "Highway", "Pkwy": "Parkway",
}  # fmt: skip

SHORT_FORMS: Final = {
    # Written with the full stop that belongs to the word.
    "e.g.": "for example", "E.g.": "For example", "i.e.": "that is", "I.e.": "That is",
    "etc.": "et cetera", "vs.": "versus", "approx.": "approximately", "Approx.": "Approximately",
    "dept.": "department", "Dept.": "Department", "est.": "established", "Est.": "Established",
    "Inc.": "Incorporated", "Ltd.": "Limited", "Corp.": "Corporation", "Co.": "Company",
    "Bros.": "Brothers", "Jr.": "Junior", "Sr.": "Senior", "Esq.": "Esquire", "Univ.": "University",
    "Assn.": "Association", "misc.": "miscellaneous", "incl.": "including", "excl.": "excluding",
    "min.": "minimum", "max.": "maximum", "avg.": "average", "temp.": "temperature", "tel.": "telephone",
    "Tel.": "Telephone", "cf.": "compare", "al.": "al", "viz.": "namely", "resp.": "respectively",
    "Ave.": "Avenue", "Blvd.": "Boulevard", "Rd.": "Road", "Apt.": "Apartment", "apt.": "apartment",
    "Mts.": "Mountains", "govt.": "government", "Govt.": "Government", "a.k.a.": "also known as",
    "A.K.A.": "also known as", "P.S.": "P S", "N.B.": "note well", "R.S.V.P.": "R S V P", "Ph.D.": "P H D",
    "M.D.": "M D", "B.A.": "B A", "M.A.": "M A", "B.Sc.": "B S C", "M.Sc.": "M S C", "D.C.": "D C",
    "oz.": "ounces", "lbs.": "pounds", "hrs.": "hours", "mins.": "minutes",
}  # fmt: skip

CONTINUING: Final = frozenset(
    listed(
        "e.g. E.g. i.e. I.e. vs. approx. Approx. est. Est. incl. excl. cf. viz. a.k.a. A.K.A. P.S. N.B. "
        "tel. Tel."
    )
)
"""Short forms that continue with what follows and end no sentence: "e.g. The Beatles"."""

WHOLE_WORDS: Final = {
    # Written without a full stop, and unambiguous.
    "vs": "versus", "PhD": "P H D", "PhDs": "P H D's", "aka": "also known as", "AKA": "also known as",
    "OK": "okay", "w/o": "without", "w/": "with ", "b/c": "because", "c/o": "care of",
    "n/a": "not applicable", "N/A": "not applicable", "and/or": "and or", "TBD": "to be determined",
    "FAQ": "F A Q", "DIY": "D I Y", "iOS": "I O S", "macOS": "mac O S",
    "GitHub": "Git Hub", "etc": "et cetera", "R&D": "R and D", "Q&A": "Q and A", "B&B": "B and B",
    "AT&T": "A T and T",
}  # fmt: skip

SAID_AS_WORDS: Final = frozenset(
    listed(
        "NASA NATO UNESCO UNICEF OPEC NAFTA ASEAN FIFA UEFA AIDS COVID SARS LASER RADAR SCUBA SIM PIN ZIP "
        "RAM ROM JPEG GIF CAPTCHA WASP SWAT NAVY ARMY IKEA LEGO NASDAQ BASIC FORTRAN COBOL JSON YAML "
        "WYSIWYG POTUS SCOTUS FEMA OSHA GAAP TED MENSA BAFTA NASCAR HIPAA ERISA FOMO YOLO BOGO LIDAR "
        "SONAR ASAP HMM SHH PSST BRR GRR ZZZ PFFT MR MRS DR"
    )
)

SAID_AS_LETTERS: Final = frozenset(
    listed(
        "AI API ATM BBC CBS CD CEO CFO CIA CIO CNN COO CPU CSS CTO DNA DIY DVD EEG EKG EPA ER ESPN ETA EU "
        "EV FAA FAQ FBI FDA FYI GDP GMO GPS GPU HBO HDMI HIV HR HTML HTTP IBM ICU ID IDE IMF IO IP IPO IQ "
        "IRA IRS ISO ISP IT IVF KGB LA LED LGBT LGBTQ LLC LOL MIT MLB MRI MTV MVP NBA NBC NFL NHL NHS NIH "
        "NPR NYC NYU OECD OS PC PDF PE PR PTA QA RNA RSVP SAT SDK SEC SOS SQL SSN SUV TSA TTS TV UAE UCLA "
        "UFO UI UK UN UPS URL US USA USB USC USDA USSR UV UX VAT VIP VPN VR WHO WTO WWI WWII XML YMCA AC "
        "DC AM PM BC AD BCE CE EST PST GMT UTC CET EDT PDT AP IOU ECB IAEA AFP AFK EMT DOJ DOE EIA UAV "
        "OCD ADHD"
    )
)

ALSO_WORDS: Final = frozenset(
    ["IT", "US", "WHO", "AM", "LA", "AD", "ID", "IRA", "SAT", "PE", "OS", "UPS", "AC", "IO", "AI", "EST"]
)
"""Initialisms that are also words: in a text in capitals they are the word."""

SHORT_WORDS: Final = frozenset(
    listed(
        "AH AN AS AT BE BY DO EH GO HA HE HI IF IN IS ME MY NO OF OH ON OR OW SO TO UH UM UP WE YO MR DR ST"
    )
)
"""Two capitals are an initialism, unless they are one of these."""

ONSETS: Final = listed(
    "bl br ch cl cr dr dw fl fr gh gl gn gr kl kn kr ph pl pr ps qu rh sc sh sk sl sm sn sp sq st sw "
    "th tr tw wh wr sch scr shr spl spr str thr"
)

LETTERED: Final = listed(
    "Plan Vitamin Section Part Option Type Class Appendix Exhibit Group Grade Figure Table Team "
    "Hepatitis Point And But So Then Or The A"
)
"""Words after which a single letter may end a sentence, and is not an initial."""

MONARCHS: Final = listed(
    "Henry Louis Elizabeth George Edward Charles William James Richard Mary Philip Felipe Napoleon "
    "Catherine Nicholas Alexander Peter Frederick Ramesses Ramses Xerxes Darius Gustav Ivan Ferdinand "
    "Leopold Otto Wilhelm Pius Benedict Leo Clement Innocent Gregory Urban Paul Juan Carlos Margaret "
    "Haakon Harald Christian Ptolemy Cleopatra Robert David Alfonso Umberto Victoria Franz Joseph "
    "Sixtus Julius Boniface"
)
NUMBERED: Final = listed(
    "Chapter Part Act Scene Volume Book Section Phase Type Class Level Article Episode Season Stage "
    "Appendix Figure Table Title War Bowl Grade Unit Category Tier Division Group Schedule Mark Rocky "
    "Fantasy Apollo Canto Stave chapter part act scene volume book section phase type class level article "
    "episode stage grade canto "
    # In headings.
    "CHAPTER PART ACT SCENE VOLUME BOOK SECTION EPISODE APPENDIX ARTICLE CANTO STAVE"
)
NUMBERED_SHORT: Final = {
    "vol": "volume", "ch": "chapter", "chap": "chapter", "pt": "part", "bk": "book", "sec": "section",
    "art": "article", "fig": "figure",
}  # fmt: skip
"""With a full stop, before a Roman numeral."""
