//! The pre-tokenizers that GGUF files name (`tokenizer.ggml.pre`).
//!
//! Each is the sequence of splits of the family's public `tokenizer.json`. A split leaves what it matches and what lies between
//! as pieces; the next one works inside each piece.

/// How text is cut into words before merging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pre {
    /// Regular expressions, in order.
    pub(super) splits: Vec<String>,
    /// Whether a word that is a token becomes it even where the merges would not lead there.
    pub(super) ignore_merges: bool,
    /// Whether the sequence begins with BOS where the file does not say.
    pub(super) add_bos: bool,
    /// Whether the family normalises to NFC.
    pub(super) nfc: bool,
}

/// GPT-2.
const GPT2: &str = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
pub(crate) const DIGIT: &str = r"\p{N}";
pub(crate) const DIGITS_3: &str = r"\p{N}{1,3}";
const NEWLINE: &str = r"[\r\n]";
/// BLOOM: anything between spaces and sentence marks.
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";
/// Han and Kana.
const CJK_3: &str = r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+";
/// Han, then everything from Samaritan to Yi and Hangul that is not covered by the steps before.
const CJK_LLM: &str = r"[\x{4e00}-\x{9fa5}\x{0800}-\x{4e00}\x{ac00}-\x{d7ff}]+";
const DEEPSEEK_3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Cased letters of the Unicode version that DeepSeek LLM was trained with.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[",
    r"\x{41}-\x{5a}\x{61}-\x{7a}\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-",
    r"\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}\x{3a3}-",
    r"\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-",
    r"\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}",
    r"\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}",
    r"\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}",
    r"\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}",
    r"\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}",
    r"\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-",
    r"\x{a76f}\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}",
    r"\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2}",
    r"\x{118a0}-\x{118df}\x{1e900}-\x{1e943}",
    r"]+",
);
const DEEPSEEK_MARKS: &str = concat!(
    r"\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}",
    r"\x{3000}-\x{3002}]+"
);

/// Contractions in any case, as every family since GPT-4 writes them.
pub(crate) const CONTRACTION: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)";

/// GPT-4's pattern. `number` says how digits are grouped.
pub(crate) fn gpt4(number: &str) -> String {
    format!(
        r"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
}

/// GPT-4o's pattern: words end where case goes up again. `suffix` follows a word, `number` groups digits.
pub(crate) fn gpt4o(suffix: &str, number: &str) -> String {
    let upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
    let lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
    let before = r"[^\r\n\p{L}\p{N}]?";
    format!(
        r"{before}{upper}*{lower}+{suffix}|{before}{upper}+{lower}*{suffix}|{number}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
}

impl Pre {
    fn plain<const N: usize>(splits: [&str; N]) -> Self {
        Self {
            splits: splits.map(str::to_owned).to_vec(),
            ignore_merges: false,
            add_bos: false,
            nfc: false,
        }
    }

    fn ignoring_merges(self) -> Self {
        Self {
            ignore_merges: true,
            ..self
        }
    }

    fn with_bos(self) -> Self {
        Self {
            add_bos: true,
            ..self
        }
    }

    fn with_nfc(self) -> Self {
        Self { nfc: true, ..self }
    }

    /// The pre-tokenizer of that name; none if it is not known.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "default" => Self::plain([r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
            "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "jina-v1-en" | "jina-v2-es"
            | "jina-v2-de" | "jina-v2-code" | "roberta-bpe" | "gigachat" | "a.x-4.0" | "mellum"
            | "modern-bert" | "jais" | "trillion" | "granite-docling" | "exaone4" => {
                Self::plain([GPT2])
            }
            "mpt" | "olmo" => Self::plain([GPT2]).with_nfc(),
            "starcoder" | "refact" | "smollm" | "codeshell" | "exaone" | "minerva-7b"
            | "mellum2" => Self::plain([DIGIT, GPT2]),
            "command-r" => Self::plain([DIGIT, GPT2]).with_nfc(),
            "falcon" => Self::plain([r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
            "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "falcon-h1" | "pixtral"
            | "midm-2.0" | "lfm2" | "jina-v5-nano" => {
                Self::plain([&gpt4(DIGITS_3)]).ignoring_merges().with_bos()
            }
            "dbrx" | "smaug-bpe" | "chatglm-bpe" => Self::plain([&gpt4(DIGITS_3)]),
            "glm4" | "glm5" => Self::plain([&gpt4(DIGITS_3)]).ignoring_merges(),
            "minicpm5" => Self::plain([DIGITS_3, &gpt4(r"\p{N}+")]).ignoring_merges(),
            "qwen2" | "deepseek-r1-qwen" | "megrez" => Self::plain([&gpt4(DIGIT)]).with_nfc(),
            "stablelm2" | "hunyuan" | "solar-open" | "grok-2" | "kormo" | "f2llmv2" => {
                Self::plain([&gpt4(DIGIT)])
            }
            "qwen35" => Self::plain([concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
                r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            )])
            .with_nfc(),
            "seed-coder" => Self::plain([concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
                r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
            )]),
            "bailingmoe" | "bailingmoe2" | "llada-moe" => Self::plain([concat!(
                r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}",
                r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
            )]),
            "deepseek-llm" => Self::plain([
                NEWLINE,
                DEEPSEEK_LETTERS,
                DEEPSEEK_MARKS,
                r"\s+$",
                CJK_LLM,
                r"\p{N}+",
            ]),
            "deepseek-coder" => Self::plain([NEWLINE, r"\s?\p{L}+", r"\s?\p{P}+", CJK_LLM, DIGIT]),
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => {
                Self::plain([DIGITS_3, CJK_3, DEEPSEEK_3])
            }
            "bloom" | "poro-chat" | "gpt3-finnish" => Self::plain([BLOOM]),
            "viking" => Self::plain([BLOOM, DIGIT]),
            "tekken" => Self::plain([&gpt4o("", DIGIT)])
                .ignoring_merges()
                .with_bos(),
            "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => {
                Self::plain([&gpt4o(&format!("{CONTRACTION}?"), DIGITS_3)])
            }
            "granite-embed-multi-97m" => {
                Self::plain([&gpt4o(&format!("{CONTRACTION}?"), DIGITS_3)]).ignoring_merges()
            }
            "chameleon" => Self::plain([
                "<sentinel:[0-9]+>",
                "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
                r"([\t\n]|    |  )",
                DIGIT,
                r"[\p{P}!-/:-@\[-`{-~]",
                GPT2,
            ])
            .with_bos(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
