//! A wait for an execution that ended before the execution did: by its limit, by Ctrl-C, by a refusal.
//! What it was for stands all the same.

use std::time::Duration;

use muster_shared::ids::ExecutionId;

use crate::{exit::Exit, failure::Failure, text};

#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) execution: ExecutionId,
    pub(crate) why: Why,
    pub(crate) stands: Stands,
}

/// What was asked for before the wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stands {
    Execution,
    Cancel,
}

impl Stands {
    const fn words(self) -> &'static str {
        match self {
            Self::Execution => "the execution goes on. To watch it",
            Self::Cancel => "the cancel stands. To watch the execution",
        }
    }
}

#[derive(Debug)]
pub(crate) enum Why {
    Over(Duration),
    Interrupted,
    /// It can be watched no more. The execution was not refused by that, so this is no refusal to whoever dispatched it.
    Failed(Box<Failure>),
}

impl Stopped {
    pub(crate) const fn exit(&self) -> Exit {
        match self.why {
            Why::Over(_) | Why::Failed(_) => Exit::WaitOver,
            Why::Interrupted => Exit::Interrupted,
        }
    }

    /// Follows `muster: ` on standard error.
    pub(crate) fn words(&self) -> String {
        let why = match &self.why {
            Why::Over(limit) => format!("stopped waiting after {}; ", text::took(*limit)),
            Why::Interrupted => "stopped waiting; ".to_owned(),
            Why::Failed(failure) => format!("{}\n", failure.what()),
        };
        format!(
            "{why}{}:\n  muster execution watch {}",
            self.stands.words(),
            self.execution
        )
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::time::Timestamp;

    use super::*;

    fn stopped(why: Why) -> Failure {
        Failure::Stopped(Stopped {
            execution: ExecutionId::mint(Timestamp::from_millis(0), [1; 10]),
            why,
            stands: Stands::Execution,
        })
    }

    #[test]
    fn whoever_may_watch_no_more_hears_that_the_execution_goes_on() {
        let revoked = Failure::NotSignedIn("the login has ended".to_owned());
        let failure = stopped(Why::Failed(Box::new(revoked)));
        assert_eq!(failure.exit(), Exit::WaitOver);
        let words = failure.words();
        let begins = "muster: not signed in: the login has ended\nthe execution goes on. To watch it:\n  muster execution watch ";
        assert!(words.starts_with(begins), "{words}");
    }

    #[test]
    fn the_limit_and_an_interruption_have_their_own_words_and_codes() {
        let over = stopped(Why::Over(Duration::from_secs(5)));
        assert_eq!(over.exit(), Exit::WaitOver);
        assert!(
            over.words()
                .starts_with("muster: stopped waiting after 5.0s; the execution goes on. ")
        );
        let interrupted = stopped(Why::Interrupted);
        assert_eq!(interrupted.exit(), Exit::Interrupted);
        assert!(
            interrupted
                .words()
                .starts_with("muster: stopped waiting; the execution goes on. ")
        );
    }

    #[test]
    fn a_cancel_stands_however_its_wait_ended() {
        let why = [
            Why::Over(Duration::from_secs(5)),
            Why::Interrupted,
            Why::Failed(Box::new(Failure::NotSignedIn("the login has ended".to_owned()))),
        ];
        for why in why {
            let execution = ExecutionId::mint(Timestamp::from_millis(0), [1; 10]);
            let stands = Stands::Cancel;
            let words = Stopped {
                execution,
                why,
                stands,
            }
            .words();
            assert!(
                words.contains("the cancel stands. To watch the execution:") && !words.contains("goes on"),
                "{words}"
            );
        }
    }
}
