//! A wait for an execution that ended before the execution did: by its limit, by Ctrl-C, by a refusal.

use std::time::Duration;

use muster_shared::ids::ExecutionId;

use crate::{exit::Exit, failure::Failure, text};

#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) execution: ExecutionId,
    pub(crate) why: Why,
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
            "{why}the execution goes on. To watch it:\n  muster execution watch {}",
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
}
