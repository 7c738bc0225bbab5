// The requests of a prompt, read and written as lantern_demo/scenes.py does it, with the tables of its `view`, here called a book.

const WORD = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";
const TOKENS = new RegExp(`[${WORD}]+|[^\\s${WORD}]+`, "gu");
const AFTER_NOUN = ["place", "time", "moon"];

const tokensOf = (prompt) => prompt.normalize("NFKC").toLowerCase().replaceAll("-", " ").match(TOKENS) ?? [];

const pluralOf = (phrase) =>
  /(s|x|z|ch|sh)$/.test(phrase) ? `${phrase}es` : /[^aeiou]y$/.test(phrase) ? `${phrase.slice(0, -1)}ies` : `${phrase}s`;

/** The book that `view` packed: each noun's plainest wording, singular and plural of its name and keywords, and whether it is not counted. */
function openBook(packed) {
  const nouns = packed.nouns.map((line) => {
    const wordings = line.split(",").map((wording) => wording.split("/"));
    const [one] = wordings[0];
    const name = one.replace(/^an? /, "");
    const mass = name === one;
    wordings[0][0] = name;
    return { one, mass, forms: wordings.map(([single, several]) => [single, mass ? single : (several ?? pluralOf(single))]) };
  });
  const book = { ...packed, nouns };
  const phrases = phrasesOf(book);
  const known = new Set([...packed.words, ...[...phrases.keys()].flatMap((phrase) => phrase.split(" "))]);
  packed.numbers.forEach((word) => known.delete(word)); // the four of a phrase is found with it
  return { ...book, phrases, known, longest: Math.max(...[...phrases.keys()].map((phrase) => phrase.split(" ").length)) };
}

/** By its words: the part and class of a phrase, and whether it means several. The last word of a place, a time or a moon means the same alone, unless it is a noun. */
function phrasesOf(book) {
  const found = new Map();
  book.nouns.forEach(({ forms, mass }, index) => {
    for (const [one, many] of forms) {
      found.set(many, { part: "noun", index, several: !mass && many !== one });
      found.set(one, { part: "noun", index });
    }
  });
  for (const part of AFTER_NOUN) {
    book.parts[part].forEach((phrases, index) => {
      const words = part === "moon" && !index ? [] : phrases.map((phrase) => phrase.split(" ").at(-1));
      for (const word of words) if (!found.has(word)) found.set(word, { part, index });
    });
  }
  for (const [part, classes] of Object.entries(book.parts)) {
    classes.forEach((phrases, index) => phrases.forEach((phrase) => found.set(phrase, { part, index })));
  }
  return found.set("an", { part: "count", index: 0 });
}

/** The class of each part that a prompt names, the words that mean nothing in it, without marks, the first number of things that no scene has, and the name of a second kind of thing. */
function readPrompt(book, prompt) {
  const words = tokensOf(prompt);
  const [said, nouns, unknown] = [{}, [], new Set()];
  let [number, afterNoun, other, refused] = [0, false, null, null];
  for (let at = 0; at < words.length; ) {
    let [length, phrase] = [book.longest, undefined];
    while (length && !(phrase = book.phrases.get(words.slice(at, at + length).join(" ")))) length--;
    const { part, index, several } = phrase ?? {};
    if (afterNoun && part !== "noun") number = 0;
    if (part === "noun") {
      if (afterNoun) nouns.pop(); // it qualifies this one
      nouns.push({ index, count: book.nouns[index].mass ? 0 : Math.max(number, several ? 1 : 0) });
      refused ??= other;
    } else if (part === "count") number = index;
    else if (part) said[part] ??= index;
    else if (!book.known.has(words[at]) && !/^\p{P}+$/u.test(words[at])) unknown.add(words[at]);
    if (phrase) other = null;
    else if (book.numbers.includes(words[at]) || /^\p{Nd}+$/u.test(words[at])) other = words[at];
    afterNoun = part === "noun";
    at += length || 1;
  }
  if (nouns.length) Object.assign(said, { noun: nouns[0].index, count: nouns[0].count });
  const second = nouns.find(({ index }) => index !== said.noun);
  return { said, unknown: [...unknown], number: refused, second: second ? book.nouns[second.index].forms[0][0] : null };
}

/** The plainest prompt that names these classes; its noun is that of the usual prompt if there is none. */
function worded(said, book) {
  const { one, forms, mass } = book.nouns[said.noun ?? book.usual.noun];
  const things = said.count && !mass ? `${book.parts.count[said.count][0]} ${forms[0][1]}` : one;
  return [things, ...AFTER_NOUN.filter((part) => part in said).map((part) => book.parts[part][said[part]][0])].join(" ");
}

/** The prompt of known words alone that is nearest to another. */
const nearest = (prompt, book) => worded({ ...book.usual, ...readPrompt(book, prompt).said }, book);
