//! Lists of English words that carry little or nothing of a question.
//!
//! Written as plain text with blanks, for they are read more often than they are searched.

/// Words that end a group.
pub(super) const HARD_STOPS: &str = "\
    about after again all also am and any anything as at because been before being between both but by can \
    cannot could describe did do does doing each else every everything explain find for from get gets give given \
    had has have he her here his how i if in into it its itself just list long looking make many may me might \
    more most much must my need no not now on only or other our out over please really same shall she should \
    show so some such tell than that their them then there these they this those through to too under until up \
    us very via was we were what when where whether which while who whom whose why will with within without \
    would you your";

/// Words that fall away inside a group.
pub(super) const SOFT_STOPS: &str = "\
    a an are be is of the";

/// Verbs of asking about a thing.
pub(super) const ASPECTS: &str = "\
    affect behave belong called checked chosen come computed configured contain created decided declared defined \
    determined done enforced ensured exist goes handled happen held hold implemented include kept live located \
    made mean need occur read refused return run say set stand stored take told used validated work written";

/// Words that say nothing alone.
pub(super) const GENERIC: &str = "\
    code codebase example file files function kind method part place project repo repository source thing things \
    way workspace";

/// Whether a list holds a word.
pub(super) fn holds(list: &str, word: &str) -> bool {
    list.split_ascii_whitespace().any(|listed| listed == word)
}
