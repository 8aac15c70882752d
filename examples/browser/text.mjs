// Text to text ids: plain numbers as words, sentences, and the byte pairs of tokenizer.json.

const SMALL = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen " +
    "seventeen eighteen nineteen").split(" ");
const TENS = ["", "", ..."twenty thirty forty fifty sixty seventy eighty ninety".split(" ")];
const GROUPS = [[1e9, "billion"], [1e6, "million"], [1e3, "thousand"], [100, "hundred"]];

export function numberInWords(value) {
    if (value < 20) return SMALL[value];
    for (const [size, name] of GROUPS) {
        if (value < size) continue;
        const rest = value % size;
        return `${numberInWords(Math.floor(value / size))} ${name}${rest ? ` ${numberInWords(rest)}` : ""}`;
    }
    return TENS[Math.floor(value / 10)] + (value % 10 ? ` ${SMALL[value % 10]}` : "");
}

/** Write plain numbers as words and drop what the vocabulary does not have. */
export function spellOut(text) {
    const words = text
        .replace(/(?<=\d),(?=\d{3})/g, "")
        .replace(/(\d)\.(\d+)/g, (_, left, digits) => `${left} point ${[...digits].join(" ")}`)
        .replace(/\d{13,}/g, (digits) => [...digits].join(" "))
        .replace(/\d+/g, (digits) => ` ${numberInWords(Number(digits))} `)
        .replace(/&/g, " and ").replace(/%/g, " percent ").replace(/\s+([.,!?;:])/g, "$1");
    return words.replace(/[^\p{L}\p{M}\s.,!?;:'"\-–—…“”‘’]/gu, " ").replace(/\s+/g, " ").trim();
}

/** Split a text into sentences, and long ones at commas or spaces. */
export function splitSentences(text, maxChars) {
    const sentences = text.match(/[^.!?]+(?:[.!?]+["'”’]*(?=\s|$)|[.!?]|$)+/g) ?? [];
    const segments = [];
    for (let rest of sentences) {
        rest = rest.trim();
        while (rest.length > maxChars) {
            const comma = rest.lastIndexOf(", ", maxChars) + 1;
            const at = comma || rest.lastIndexOf(" ", maxChars) || maxChars;
            segments.push(rest.slice(0, at).trim());
            rest = rest.slice(at).trim();
        }
        if (/\p{L}/u.test(rest)) segments.push(rest);
    }
    return segments;
}

/** Byte-pair encoding by tokenizer.json: NFD without accents, lower case, respellings, words, merges. */
export class Tokenizer {
    constructor(content, card) {
        this.vocabulary = content.model.vocab;
        this.unknown = this.vocabulary[content.model.unk_token];
        this.ranks = new Map(content.model.merges.map((pair, rank) => [[].concat(pair).join(" "), rank]));
        this.added = new Map(content.added_tokens.map((token) => [token.content, token.id]));
        const escaped = [...this.added.keys()].map((token) => token.replace(/[[\]\\^$.*+?(){}|]/g, "\\$&"));
        this.pattern = new RegExp(`(${escaped.join("|")})`);
        const steps = content.normalizer?.normalizers ?? [];
        this.respellings = steps.filter((step) => step.type === "Replace").map((step) => [step.pattern.String, step.content]);
        this.card = card;
    }

    encode(text) {
        const { replacements, enders } = this.card.punctuation;
        text = text.trim().split(/\s+/).join(" ");
        for (const [from, to] of replacements) text = text.replaceAll(from, to);
        text = text.replace(/ +$/, "");
        if (!enders.some((ender) => text.endsWith(ender))) text += ".";
        const parts = text.replaceAll(" ", this.card.space_token).split(this.pattern);
        return parts.flatMap((part) => (this.added.has(part) ? [this.added.get(part)] : this.encodePart(part)));
    }

    encodePart(part) {
        let normal = part.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
        for (const [from, to] of this.respellings) normal = normal.replaceAll(from, to);
        const words = normal.match(/[\p{L}\p{M}\p{Nd}\p{Pc}]+|[^\s\p{L}\p{M}\p{Nd}\p{Pc}]+/gu) ?? [];
        return words.flatMap((word) => this.encodeWord(word));
    }

    encodeWord(word) {
        let pieces = [...word];
        for (;;) {
            let best = -1;
            let lowest = Infinity;
            for (let at = 0; at + 1 < pieces.length; at++) {
                const rank = this.ranks.get(`${pieces[at]} ${pieces[at + 1]}`) ?? Infinity;
                if (rank < lowest) [best, lowest] = [at, rank];
            }
            if (best < 0) return pieces.map((piece) => this.vocabulary[piece] ?? this.unknown);
            pieces = [...pieces.slice(0, best), pieces[best] + pieces[best + 1], ...pieces.slice(best + 2)];
        }
    }
}
