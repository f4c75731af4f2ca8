//! Posts callbacks, each until control has answered it for good.

use std::time::Duration;

use muster_shared::wire::{Callback, CallbackResponse};
use tokio::sync::{Notify, Semaphore};

use super::upload::Turn;
use crate::{
    backoff::{self, Backoff},
    control::{CallError, Control},
    kick::Kicks,
    session::{Delivered, Errand},
};

/// Callbacks under way at the same time.
const POSTS_MAX: usize = 4;
/// The same of those for which control has to look into the store: they must not hold up the others.
const CHECKED_POSTS_MAX: usize = 2;

/// The way of every callback to control.
pub(super) struct Post {
    control: Control,
    backoff: backoff::Bounds,
    posts: Semaphore,
    /// Reports at which control looks into the store before it answers: with an end, and after one.
    checked_posts: Semaphore,
    late_posts: Semaphore,
    /// Control can be reached again: do not wait any longer.
    reachable: Notify,
    kicks: Kicks,
}

/// What came of one post that was answered for good.
pub(super) enum Posted {
    Taken(CallbackResponse),
    Refused {
        delivered: Delivered,
        why: String,
    },
    /// Control cannot offer a place, or does not find there what it was told.
    NotUploaded(String),
}

/// What an answer of control means for the one who delivers.
enum Answer {
    Done(Delivered),
    NotUploaded,
    Again { asked: Option<Duration> },
}

impl Post {
    pub(super) fn new(control: Control, backoff: backoff::Bounds, kicks: Kicks) -> Self {
        Self {
            control,
            backoff,
            posts: Semaphore::new(POSTS_MAX),
            checked_posts: Semaphore::new(CHECKED_POSTS_MAX),
            late_posts: Semaphore::new(1),
            reachable: Notify::new(),
            kicks,
        }
    }

    pub(super) fn nudge(&self) {
        self.reachable.notify_waiters();
    }

    /// Posts one callback until control has answered for good.
    pub(super) async fn deliver(&self, errand: &Errand, callback: &Callback) -> Posted {
        self.stepwise_in(&self.posts, errand, callback).await
    }

    /// The same of one for which control has to look into the store. What is late holds up no end.
    pub(super) async fn deliver_checked(&self, turn: Turn, errand: &Errand, callback: &Callback) -> Posted {
        let slots = match turn {
            Turn::Late => &self.late_posts,
            Turn::WithItsEnd => &self.checked_posts,
        };
        self.stepwise_in(slots, errand, callback).await
    }

    /// Whole first; step by step where control is from before that, or further behind than this node knows.
    async fn stepwise_in(&self, slots: &Semaphore, errand: &Errand, callback: &Callback) -> Posted {
        let posted = self.until_answered(slots, errand, callback).await;
        let Posted::Refused {
            delivered: Delivered::Ahead,
            ..
        } = posted
        else {
            return posted;
        };
        if callback.passed.is_empty() {
            return posted;
        }
        // What it says of the last one counts.
        for passed in &callback.passed {
            let step = Callback::of((*passed).into());
            let _ = self.until_answered(slots, errand, &step).await;
        }
        let last = Callback {
            passed: Vec::new(),
            ..callback.clone()
        };
        self.until_answered(slots, errand, &last).await
    }

    async fn until_answered(&self, slots: &Semaphore, errand: &Errand, callback: &Callback) -> Posted {
        let request = &errand.request;
        let about_upload = callback.names_object() || callback.declared_output_bytes.is_some();
        let mut backoff = Backoff::new(self.backoff);
        let mut failures: u64 = 0;
        loop {
            // Waiting for the slot is not waiting for control: the slot is given back before each wait.
            let slot = slots.acquire().await;
            let mut kicks = self.kicks();
            let answered = self
                .control
                .callback(request.execution_id, &request.callback_token, callback)
                .await;
            drop(slot);
            let err = match answered {
                Ok(response) => return Posted::Taken(response),
                Err(err) => err,
            };
            let asked = match judge(&err) {
                Answer::Done(delivered) => {
                    let stepwise = delivered == Delivered::Ahead && !callback.passed.is_empty();
                    let level = if stepwise {
                        log::Level::Debug
                    } else {
                        log::Level::Warn
                    };
                    log::log!(level, execution_id:% = request.execution_id, node_id:% = request.node_id, action:% = request.action,
                        status:% = callback.status, error:% = err; "Control will not take a callback: {delivered:?}");
                    let why = err.to_string();
                    return Posted::Refused { delivered, why };
                }
                Answer::NotUploaded if about_upload => return Posted::NotUploaded(err.to_string()),
                Answer::NotUploaded => None,
                Answer::Again { asked } => asked,
            };
            failures += 1;
            let level = if failures == 1 {
                log::Level::Warn
            } else {
                log::Level::Debug
            };
            log::log!(level, execution_id:% = request.execution_id, action:% = request.action, node_id:% = request.node_id, status:% = callback.status, failures,
                error:% = err; "A callback was not taken and is tried again");
            self.wait(&mut backoff, asked, &mut kicks).await;
        }
    }

    /// Until the next try; less where control can be reached again, and has not asked for more. The node's admin need not
    /// wait even then.
    pub(super) async fn wait(&self, backoff: &mut Backoff, asked: Option<Duration>, kicks: &mut Kicks) {
        let wait = tokio::time::sleep(backoff.next_unless_asked(asked, backoff::chance()));
        let asked = asked.is_some_and(|asked| !asked.is_zero());
        tokio::select! {
            () = wait => {}
            () = self.reachable.notified(), if !asked => backoff.reset(),
            () = kicks.kicked() => backoff.reset(),
        }
    }

    /// Those from now on.
    pub(super) fn kicks(&self) -> Kicks {
        let mut kicks = self.kicks.clone();
        kicks.forget();
        kicks
    }
}

/// Only an answer that can never change is an end; anything else is tried again.
fn judge(err: &CallError) -> Answer {
    let again = Answer::Again {
        asked: err.retry_after(),
    };
    match err {
        CallError::Unreachable(_) | CallError::Senseless(_) => again,
        CallError::Refused { status, .. } => match (*status, err.code()) {
            (502, Some("output_upload_failed")) => Answer::NotUploaded,
            (409, Some("invalid_state_transition")) => Answer::Done(Delivered::Ahead),
            (401 | 408 | 425 | 429, _) => again,
            // Without a code it is not control that speaks, but something before it that knows of no invocation.
            (400..=499, None) => again,
            (409, Some(_)) => Answer::Done(Delivered::Settled),
            (403, Some("callback_token_mismatch" | "nsk_node_mismatch")) => Answer::Done(Delivered::Gone),
            // Any other is about the node: an identity that is refused today may be known again tomorrow.
            (403, Some(_)) => again,
            (404, Some("execution_not_found")) => Answer::Done(Delivered::Unknown),
            (400..=499, Some(_)) => Answer::Done(Delivered::Gone),
            _ => again,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shared::wire::Problem;

    fn refused(status: u16, code: Option<&str>) -> Option<Delivered> {
        let problem = Problem {
            kind: String::new(),
            title: String::new(),
            status,
            detail: String::new(),
            instance: String::new(),
            code: code.map(Into::into),
            position: None,
            dropped: Vec::new(),
            reason: None,
            correlation_id: None,
        };
        match judge(&CallError::Refused {
            status,
            problem: Some(Box::new(problem)),
            retry_after: None,
        }) {
            Answer::Done(delivered) => Some(delivered),
            Answer::NotUploaded | Answer::Again { .. } => None,
        }
    }

    #[test]
    fn only_an_answer_for_good_ends_the_delivery() {
        for (status, code, expected) in [
            (409, "execution_already_terminal", Delivered::Settled),
            (409, "invalid_state_transition", Delivered::Ahead),
            (404, "execution_not_found", Delivered::Unknown),
            (403, "callback_token_mismatch", Delivered::Gone),
            (403, "nsk_node_mismatch", Delivered::Gone),
        ] {
            assert_eq!(refused(status, Some(code)), Some(expected), "{status} {code}");
        }
        for status in [401, 408, 429, 500, 502, 503, 302] {
            assert_eq!(refused(status, Some("")), None, "{status}");
        }
    }

    #[test]
    fn neither_a_refused_identity_nor_a_gateway_ends_a_delivery() {
        assert_eq!(refused(401, Some("unauthenticated")), None);
        assert_eq!(refused(403, Some("node_id_mismatch")), None);
        for status in [400, 401, 403, 404, 407, 409, 413, 451] {
            assert_eq!(refused(status, None), None, "{status}");
        }
    }
}
