// What a prompt asks for, told by its words: read and written as lantern_demo/prompt_words.py does it, with the tables of its
// Phrasebook.view, here called a book.

const WORD = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}";
const TOKENS = new RegExp(`[${WORD}]+|[^\\s${WORD}]+`, "gu");

const tokensOf = (prompt) => prompt.normalize("NFKC").toLowerCase().match(TOKENS) ?? [];

/** What a prompt asks for: see Reading. */
function readPrompt(book, prompt) {
  const tokens = tokensOf(prompt);
  let text = ` ${tokens.join(" ")} `;
  const said = {};
  for (const [words, part, phrase] of book.readings) {
    if (part in said || !text.includes(` ${words} `)) continue;
    said[part] = phrase;
    text = text.replaceAll(` ${words} `, ` ${book.gap} `);
  }
  const [one, several] = book.nouns.map((noun) => tokens.includes(noun));
  if (one && !several) said[book.number] ??= book.singular[0];
  return { named: one || several, said };
}

const drawable = ({ named, said }, book) => named && Object.keys(said).some((part) => part !== book.number);

function sure(reading, book) {
  const several = !book.singular.includes(reading.said[book.number]);
  return drawable(reading, book) && (several || book.allButTheMoon.every((part) => part in reading.said));
}

/** A prompt that says these phrases. */
function worded(said, book) {
  const parts = Object.keys(book.parts).filter((part) => part in said);
  const noun = book.nouns[book.singular.includes(said[book.number]) ? 0 : 1];
  const [before, after] = [true, false].map((side) => parts.filter((part) => book.before.includes(part) === side).map((part) => said[part]));
  return [...before, noun, ...after].join(" ");
}

/** The prompt of known phrases alone that is nearest to another. */
function nearest(prompt, book) {
  const { said } = readPrompt(book, prompt);
  return worded(sure({ named: true, said }, book) ? said : { ...book.usual, ...said }, book);
}

/** The words of a prompt that the model does not know. Marks between words are none. */
function unknownWords(prompt, book) {
  return [...new Set(tokensOf(prompt))].filter((token) => !book.words.includes(token) && !/^\p{P}+$/u.test(token));
}
