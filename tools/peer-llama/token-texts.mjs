// Texts that pre-tokenizers may cut differently: scripts, digits, spaces, newlines, contractions, controls, emoji, broken sequences.

/** The texts that the repository stores with their ids. */
export const texts = [
  'hello world, hello  world   hello\tworld',
  "I'll you've we're he'd it's I'm can't 'tis o'clock rock'n'roll 'S 'Ve 'LL 'rE 'M",
  "I’ll don’t ’s ‘quoted’ “quoted” «quoted» „quoted‟",
  '0 1 12 123 1234 12345 1234567890 v1.2.3 3.14159 1,000,000 0x1F 1e-9 50% $99 #7 №5',
  '٠١٢٣٤٥٦٧٨٩ ०१२३ ۱۲۳ ๑๒๓ ½ ¼ ² ³ Ⅷ ⅷ ① ㊿ 五 零 𝟘𝟙𝟚 １２３ 𞥐',
  '   leading spaces', 'trailing spaces   ', ' ', '  ', '   ', '\t', '\t\t', '\n', '\n\n', '\n\n\n', '\r', '\r\n', '\r\n\r\n', ' \n', '\n ', ' \n ', '  \n  \n  x',
  'a\n\n\n b\n \n c\r\n\r\n  d\r \re\t\n\tf', 'if x:\n    return y\n\n\n\tpass  \n', 'a  \n\n  b', 'end\n', 'end \n', 'end  ', '!\n', '!!!\n\n\n', ' !\r\n\r\nx', '.\r', 'x \r\n y',
  'x\u00a0y \u00a0z\u00a0 \u2003\u2003w\u3000v\u1680u\u2028t\u2029s\u202fr\u205fq\u0085p', 'a\u000bb\u000cc \u000b \u000c', '\u200b \u200c \u200d \u2060 \ufeff \u180e x\u00ady',
  '\u0000\u0001\u0002 \u0007\u0008 \u001b[31m \u007f\u0080\u0099 \u001c\u001d\u001e\u001f',
  '!"#$%&\'()*+,-./:;<=>?@[\\]^_`{|}~', ' ! " # $ % & \' ( ) * + , - . / : ; < = > ? @ [ \\ ] ^ _ ` { | } ~', '...---===+++ <<>> ~~ ^^ || $$ ``` /// a/b/c/ //\n/',
  '¡¿§¶·¸¨¯´×÷±¬¦©®°µªº€£¥¢‰‱†‡•…‹›⁄∑∞≠≤≥→←↑↓■□▲◆★☆♠♥',
  '，。、；：？！（）【】《》「」『』〈〉〔〕—…～·￥％＃＠＆＊＋－／＝＿｛｜｝', '‘a’‛b‟‐‑‒–—―‖‗',
  'The Quick brown FOX jumpsOver theLAZY camelCaseXMLHttpRequest2 snake_case kebab-case SCREAMING_SNAKE',
  'Ünïcödé naïve façade Straße ŁÓDŹ Çılgın İstanbul ǅ ǈ ǲ ʰʲ ﬁ ﬀ Ω K Å ℓ ℵ', 'e\u0301 a\u0308\u0301 n\u0303 \u0301x \u0301\u0302 क\u093f ก\u0e34\u0e49 \u20dd\u20e3',
  'Привет, мир! Ещё раз. Ґанок їжак', 'Γειά σου Κόσμε ἀρχὴ ᾳ ᾼ', 'שלום עולם מַה־זֶּה', 'مرحبا بالعالم، كيف الحال؟ ـــ لَا', 'नमस्ते दुनिया। कैसे हो?', 'হ্যালো বিশ্ব', 'வணக்கம் உலகம்', 'สวัสดีชาวโลก ๆ', 'ສະບາຍດີ', 'ជំរាបសួរ', 'မင်္ဂလာပါ', 'გამარჯობა ᲒᲐ Ⴀ ⴀ', 'Բարեւ Աշխարհ և', 'ሰላም ልዑል', 'ᏣᎳᎩ ꮳꮃꭹ', 'ᐃᓄᒃᑎᑐᑦ', 'བཀྲ་ཤིས།', 'ᠮᠣᠩᠭᠣᠯ', 'Ⰳⰾⰰ ⲁⲃⲅ ꙋꙗ',
  '你好，世界！今天是2024年1月1日。', 'こんにちは世界。カタカナﾊﾝｶｸ ゛ー々〆ヶ', '안녕하세요 세계! ㅋㅋㅋ 각 ᄀ', '漢字かな交じり文123abcＡＢＣ混在 𠀀𠮷野家 龥龦鿿', '中文english中文 123中文 中文 中文',
  '😀😃 👩‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 ❤️ ☺ ☺️ 1️⃣ #️⃣ a😀b 😀1 😀😀😀 \u{1f9d1}\u200d\u{1f680}', '𝓗𝓮𝓵𝓵𝓸 𝔘𝔫𝔦 𝕏 𐐀𐐨 𐲀𐳀 𑢠𑣀 𞤀𞤢 𐊀 𒀀 𓀀',
  '\ufffd \ufffd\ufffd a\ufffdb \ufffe \uffff \u{10ffff} \ue000 \uf8ff \u{f0000}',
  '<|endoftext|> <s> </s> <unk> [INST] <start_of_turn>user\n <0x0A> ▁▁a Ġ Ċ', "'", "''", "'s", " 's", "a's'", "'sa", "'stop", "1's", " 'tis", "S'S", "'ſ 'K",
  'https://example.com/a?b=c&d=%20#e user@example.org C:\\dir\\file.txt ~/x ../y', '{"key": [1, 2.5, null], "a\\n": true}\n', 'def f(x):\n\treturn x**2  # 注释\n', '<div class="x">&nbsp;</div>', 'a_b __init__ _x x_ $x @x #x', 'x=1;y+=2;z=x<=y?x:y;',
];

/** Texts with special tokens. */
export const markedTexts = [
  '<|user|>\nhello<|end|>\n<|assistant|>\n', '<|user|> \t\n hello <|end|>', '<|user|>\n', '<|end|>  ', 'a<|end|>b', 'a <|end|> b', '<|endoftext|> a', '<|endoftext|>\n\na',
  '<s>hello', '<s> hello</s>\n<s>', 'a</s>b', '<unk> a<unk>', '<start_of_turn>user\nhello<end_of_turn>\n<start_of_turn>model\n',
  '<table>a</table>', ' <table> a </table> ', '[tool]\n\n[tool]', '\n\n\n\n\n', '     ', ' hello   the    world', '\t\t\t', '<unused0>a', '<0x0A>a', '<0xZZ>a', '▁ ▁▁a', '<|user|><|user|>', '<|us', '<|user|', '<<|user|>>',
];

/** Seeded mixtures of the fragments of all scripts. */
export function mixtures(count, seed = 1) {
  const fragments = texts.flatMap((text) => text.match(/\s+|\S{1,4}/gu) ?? []);
  let state = seed;
  const random = (limit) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
  return Array.from({ length: count }, () => Array.from({ length: 1 + random(12) }, () => fragments[random(fragments.length)]).join(''));
}

/** Every character of Unicode between letters, digits, spaces, punctuation and newlines, `perText` to a text. */
export function* allCharacters(perText, from = 0, to = 0x110000) {
  const around = (char) => `a${char}b 1${char}2 ${char}${char}\n${char}.${char} ${char}A`;
  for (let code = from; code < to; code += perText) {
    let text = '';
    for (let at = code; at < Math.min(code + perText, to); at++) if (at < 0xd800 || at > 0xdfff) text += around(String.fromCodePoint(at));
    if (text !== '') yield text;
  }
}
