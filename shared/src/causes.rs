//! Why something failed, as all programs of Muster say it.

use std::error::Error;

/// An error with all its causes, in one line.
pub fn chain(err: &dyn Error) -> String {
    let mut text = err.to_string();
    let mut source = err.source();
    while let Some(err) = source {
        let cause = err.to_string();
        // Some libraries repeat their source in their own text.
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = err.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Failed {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    fn failed(texts: &[&'static str]) -> Failed {
        let (text, causes) = texts.split_first().expect("a failure has a text");
        Failed {
            text,
            source: (!causes.is_empty()).then(|| Box::new(failed(causes))),
        }
    }

    #[test]
    fn every_cause_is_told_once() {
        assert_eq!(chain(&failed(&["the disk"])), "the disk");
        assert_eq!(
            chain(&failed(&["the journal", "a page", "the disk"])),
            "the journal: a page: the disk"
        );
        assert_eq!(
            chain(&failed(&["the journal: the disk", "the disk"])),
            "the journal: the disk"
        );
    }
}
