//! Everything that can end a command early, with its words and its exit code.

use std::{io, time::Duration};

use muster_shared::{
    ids::ActionName,
    wire::{Dropped, Problem},
};

use crate::{exit::Exit, lookup::NodeNames, problem, stopped::Stopped};

#[derive(Debug)]
pub(crate) enum Failure {
    /// What was typed, set or written in the context file cannot be carried out.
    Usage(String),
    /// Control answered with a problem. The selector is the text that the problem's position points into, the names those
    /// of the nodes that it dropped.
    Refused {
        problem: Box<Problem>,
        selector: Option<String>,
        names: NodeNames,
        /// When control says that it may be asked again.
        retry_after: Option<Duration>,
    },
    /// A name led nowhere.
    NoSuch(String),
    /// It was carried out on no node at all.
    NoMatch(String),
    /// Nobody answered; asking again may help.
    Unreachable(String),
    /// Somebody answered whose certificate does not hold; asking again does not help.
    Untrusted(String),
    /// The issuer does not answer; asking again may help.
    IssuerUnreachable(String),
    /// There is no login, or it has ended.
    NotSignedIn(String),
    /// An answer that this program does not understand.
    Unexpected(String),
    /// Something on this machine went wrong.
    Local { doing: String, err: io::Error },
    /// Control told no more of an execution, and why; asked again, it may.
    StreamEnded(String),
    /// The waiting for an execution, before that had ended.
    Stopped(Stopped),
    /// Before control had answered a dispatch, which it may have made.
    InterruptedSending { action: ActionName },
}

impl Failure {
    pub(crate) fn local(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |err| Self::Local { doing, err }
    }

    /// Tells a refusal which selector it was about.
    pub(crate) fn about_selector(mut self, text: Option<&str>) -> Self {
        if let Self::Refused { selector, .. } = &mut self {
            *selector = text.map(str::to_owned);
        }
        self
    }

    /// Tells whoever named what is not there what else may help.
    pub(crate) fn with_remedy(mut self, remedy: &str) -> Self {
        if let Self::NoSuch(what) = &mut self {
            what.push_str("; ");
            what.push_str(remedy);
        }
        self
    }

    /// The nodes that gates dropped before control refused.
    pub(crate) fn dropped(&self) -> &[Dropped] {
        if let Self::Refused { problem, .. } = self {
            &problem.dropped
        } else {
            &[]
        }
    }

    /// Tells a refusal what the nodes are called that it is about.
    pub(crate) fn about_nodes(mut self, called: NodeNames) -> Self {
        if let Self::Refused { names, .. } = &mut self {
            *names = called;
        }
        self
    }

    /// Whether the same question may well be answered in a moment.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::IssuerUnreachable(_) | Self::StreamEnded(_) => true,
            Self::Refused { problem, .. } => matches!(problem.status, 408 | 425 | 429 | 500..=599),
            Self::Usage(_)
            | Self::NoSuch(_)
            | Self::NoMatch(_)
            | Self::Untrusted(_)
            | Self::NotSignedIn(_)
            | Self::Unexpected(_)
            | Self::Local { .. }
            | Self::Stopped(_)
            | Self::InterruptedSending { .. } => false,
        }
    }

    /// How long to wait before asking again what was turned away as too much for now, and so was not done.
    pub(crate) fn turned_away_for(&self) -> Option<Duration> {
        match self {
            Self::Refused {
                problem, retry_after, ..
            } if problem.status == 429 => *retry_after,
            Self::Refused { .. }
            | Self::Usage(_)
            | Self::NoSuch(_)
            | Self::NoMatch(_)
            | Self::Unreachable(_)
            | Self::Untrusted(_)
            | Self::IssuerUnreachable(_)
            | Self::NotSignedIn(_)
            | Self::Unexpected(_)
            | Self::Local { .. }
            | Self::StreamEnded(_)
            | Self::Stopped(_)
            | Self::InterruptedSending { .. } => None,
        }
    }

    /// Whether control refused with this code.
    pub(crate) fn is_code(&self, code: &str) -> bool {
        matches!(self, Self::Refused { problem, .. } if problem.code.as_deref() == Some(code))
    }

    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Usage(_) => Exit::Usage,
            Self::Refused { problem, .. } => problem::exit(problem),
            Self::NoSuch(_) | Self::NotSignedIn(_) | Self::StreamEnded(_) => Exit::Refused,
            Self::NoMatch(_) => Exit::NoMatch,
            Self::Unreachable(_) | Self::Untrusted(_) | Self::IssuerUnreachable(_) => Exit::Unreachable,
            Self::Unexpected(_) | Self::Local { .. } => Exit::Other,
            Self::Stopped(stopped) => stopped.exit(),
            Self::InterruptedSending { .. } => Exit::Interrupted,
        }
    }

    /// What standard error shows, without the line break at its end.
    pub(crate) fn words(&self) -> String {
        format!("muster: {}", self.what())
    }

    pub(crate) fn what(&self) -> String {
        match self {
            Self::Usage(what) | Self::NoSuch(what) | Self::NoMatch(what) => what.clone(),
            Self::Refused {
                problem,
                selector,
                names,
                ..
            } => problem::explain(problem, selector.as_deref(), names),
            Self::Unreachable(why) | Self::Untrusted(why) => format!("cannot reach control: {why}"),
            Self::IssuerUnreachable(why) => format!("cannot reach the issuer: {why}"),
            Self::NotSignedIn(why) => format!("not signed in: {why}"),
            Self::Unexpected(what) => format!("unexpected answer: {what}"),
            Self::Local { doing, err } => format!("{doing}: {err}"),
            Self::StreamEnded(why) => format!("control ended the event stream: {why}"),
            Self::Stopped(stopped) => stopped.words(),
            // What was resent as often as that goes lasts for less than these five minutes.
            Self::InterruptedSending { action } => format!(
                "interrupted; it may have been dispatched all the same: muster executions --action {action} --since 5m"
            ),
        }
    }
}
