//! Words of Chinese, Japanese and Korean questions: what is left when particles and question words are gone.
//!
//! No dictionary: Japanese falls apart where the script changes, for particles and endings are hiragana; Korean
//! words lose the particle at their end; Chinese falls apart at a short list of particles and question words.
//! Some of those characters also stand inside ordinary words (`路由`, `请求`, `存在`); such words are protected, and
//! the longest entry that fits decides.

use super::term::Script;
use super::vocabulary::holds;

/// Chinese and Japanese words that only ask or join.
const STOPS: &str = "\
    在哪里 在哪裡 哪里 哪裡 哪儿 哪个 哪個 哪些 什么 什麼 为什么 為什麼 为何 為何 怎么 \
    怎麼 怎样 怎樣 如何 多少 是否 请问 請問 告诉 告訴 解释 解釋 说明 說明 一下 或者 还是 \
    由于 任何 何处 何時 何时 这个 那个 這個 那個 我们 的 了 是 在 和 与 與 或 把 被 \
    由 从 從 吗 嗎 呢 吧 啊 请 請 谁 誰 何 哪 这 這 那 我 你 它";

/// Ordinary words that hold a character of [`STOPS`].
const PROTECTED: &str = "\
    目的 存在 在线 在線 了解 总和 總和 自由 理由 路由 被动 被動 从属 从库 参与 參與 请求 \
    請求 申请 申請 几何 幾何 自我 服从 和弦 与门 或门 誰何";

/// Verbs of asking about a thing: they help ranking, and are no thing to look for.
const ASPECTS: &str = "\
    决定 決定 定义 定義 实现 實現 実装 使用 调用 調用 处理 處理 処理";

/// Japanese words in hiragana that only ask or join; a run of hiragana is looked for only when nothing else is left.
const HIRAGANA_STOPS: &str = "\
    どのように ください されますか しますか ですか ますか でしょうか どこ なに なぜ だれ どれ \
    どう いつ これ それ あれ される する です ます から まで には では は が を に で \
    と の も へ や か ね よ";

/// Korean words that only ask.
const HANGUL_STOPS: &str = "\
    어디 어디서 어디에 어디에서 무엇 무엇을 무엇이 왜 어떻게 누가 언제 어느 있나요 있는가 \
    있습니까 합니까 하나요 하는 되나요 됩니까 되는 인가요 입니까 그리고 또는";

/// Korean particles at the end of a word, longer ones first.
const HANGUL_PARTICLES: &str = "\
    에서는 에서 에게 으로 까지 부터 한테 은 는 이 가 을 를 에 의 와 과 도 만 로";

/// What a run of these scripts holds.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RunWords {
    /// Things to look for, in their order.
    pub(super) contents: Vec<String>,
    /// Words that only help ranking.
    pub(super) aspects: Vec<String>,
}

/// Takes a run without blanks apart.
pub(super) fn run_words(run: &str) -> RunWords {
    let mut words = RunWords::default();
    let mut kana = String::new();
    for (class, chunk) in chunks(run) {
        match class {
            Script::Hangul => hangul_word(&chunk, &mut words),
            Script::Hiragana => kana.push_str(trimmed(&chunk)),
            _ => han_words(&chunk, &mut words),
        }
    }
    // A lone character beside longer words is the rest of an inflected verb, not a thing.
    if words.contents.iter().any(|word| word.chars().count() > 1) {
        words.contents.retain(|word| word.chars().count() > 1);
    }
    if words.contents.is_empty() && words.aspects.is_empty() && kana.chars().count() > 1 {
        words.contents.push(kana);
    }
    words
}

/// Pieces of one script; Chinese characters and katakana stay together, for compounds mix them.
fn chunks(run: &str) -> Vec<(Script, String)> {
    let mut chunks: Vec<(Script, String)> = Vec::new();
    for character in run.chars() {
        let class = match Script::of(character) {
            Script::Katakana => Script::Han,
            other => other,
        };
        match chunks.last_mut() {
            Some((last, chunk)) if *last == class => chunk.push(character),
            _ => chunks.push((class, character.to_string())),
        }
    }
    chunks
}

fn hangul_word(chunk: &str, words: &mut RunWords) {
    if holds(HANGUL_STOPS, chunk) {
        return;
    }
    let stem = HANGUL_PARTICLES
        .split_ascii_whitespace()
        .find_map(|particle| chunk.strip_suffix(particle).filter(|stem| stem.chars().count() > 1))
        .unwrap_or(chunk);
    if !holds(HANGUL_STOPS, stem) {
        words.contents.push(stem.to_owned());
    }
}

fn han_words(chunk: &str, words: &mut RunWords) {
    let mut word = String::new();
    let mut rest = chunk;
    while let Some(first) = rest.chars().next() {
        let stop = longest(rest, STOPS);
        let aspect = longest(rest, ASPECTS);
        let kept = longest(rest, PROTECTED);
        let taken = if kept > 0 && kept >= stop.max(aspect) {
            word.push_str(&rest[..kept]);
            kept
        } else if stop.max(aspect) > 0 {
            if !word.is_empty() {
                words.contents.push(std::mem::take(&mut word));
            }
            if aspect > stop {
                words.aspects.push(rest[..aspect].to_owned());
            }
            stop.max(aspect)
        } else {
            word.push(first);
            first.len_utf8()
        };
        rest = &rest[taken..];
    }
    if !word.is_empty() {
        words.contents.push(word);
    }
}

/// Length in bytes of the longest entry that `text` starts with; 0 when none does.
fn longest(text: &str, entries: &str) -> usize {
    entries.split_ascii_whitespace().filter(|entry| text.starts_with(entry)).map(|entry| entry.len()).max().unwrap_or(0)
}

/// Drops joining words at both ends; inside a word their letters belong to it.
fn trimmed(chunk: &str) -> &str {
    let mut rest = chunk;
    loop {
        // One letter at the start is more likely a word's own than a particle.
        let start = longest(rest, HIRAGANA_STOPS);
        let start = if rest[..start].chars().count() > 1 { start } else { 0 };
        let end = HIRAGANA_STOPS
            .split_ascii_whitespace()
            .filter(|stop| rest[start..].ends_with(stop))
            .map(|stop| stop.len())
            .max();
        let end = end.unwrap_or(0);
        if start + end == 0 {
            return rest;
        }
        rest = &rest[start..rest.len() - end];
    }
}

#[cfg(test)]
mod tests {
    use super::run_words;

    #[test]
    fn chinese_falls_apart_at_particles_and_question_words() {
        let words = run_words("缓存服务在哪里读取配置");
        assert_eq!(words.contents, ["缓存服务", "读取配置"]);
        let words = run_words("重启强度是在哪里决定的");
        assert_eq!((words.contents, words.aspects), (vec!["重启强度".to_owned()], vec!["决定".to_owned()]));
    }

    #[test]
    fn ordinary_words_with_a_particle_inside_stay_whole() {
        assert_eq!(run_words("为什么请求路由存在").contents, ["请求路由存在"]);
        assert_eq!(run_words("請問目的是什麼").contents, ["目的"]);
    }

    #[test]
    fn japanese_falls_apart_where_the_script_changes() {
        let words = run_words("再起動の強度はどこで決定されますか");
        assert_eq!((words.contents, words.aspects), (vec!["再起動".into(), "強度".into()], vec!["決定".to_owned()]));
        assert_eq!(run_words("キャッシュ設定を読む").contents, ["キャッシュ設定"]);
        assert_eq!(run_words("ひらがなですか").contents, ["ひらがな"]);
        assert!(run_words("どこですか").contents.is_empty());
    }

    #[test]
    fn korean_words_lose_their_particle() {
        assert_eq!(run_words("캐시를").contents, ["캐시"]);
        assert_eq!(run_words("설정은").contents, ["설정"]);
        assert!(run_words("어디에서").contents.is_empty());
    }

    #[test]
    fn one_character_alone_is_looked_for() {
        assert_eq!(run_words("锁").contents, ["锁"]);
        assert!(run_words("吗").contents.is_empty());
    }
}
