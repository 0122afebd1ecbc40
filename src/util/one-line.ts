// External text in a form that fits one line of a log or an answer.

/** At most `charactersMax` characters of the text; line breaks and control characters become U+FFFD. */
export function oneLine(text: string, charactersMax: number): string {
  const short = text.length > charactersMax ? `${text.slice(0, charactersMax)}...` : text;
  return short.replace(/[\p{Cc}\p{Zl}\p{Zp}\p{Cf}\p{Cs}]/gu, '\ufffd');
}
