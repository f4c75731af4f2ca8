//! Follows an execution's event stream until it is settled, over as many connections as that takes.

use std::time::Duration;

use eventsource_stream::{Event, EventStreamError, Eventsource as _};
use futures_util::StreamExt as _;
use muster_shared::{
    ids::{ExecutionId, ProjectId},
    wire::{Execution, Problem, Rollout, TimelineEvent},
};
use serde::de::DeserializeOwned;

use crate::{
    client::{Client, Route},
    execution,
    failure::Failure,
    text,
};

/// The wait before the first reconnect, doubled for each further one.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_LAST: Duration = Duration::from_secs(10);

/// What a follower tells while it follows.
pub(crate) enum News {
    Changed(TimelineEvent),
    /// Its rollout has moved.
    Rolled(Rollout),
    /// The connection is gone; it goes on trying.
    Lost(Failure),
    /// The connection stands again.
    Back,
}

/// Ends with the execution as control settled it, output included.
pub(crate) async fn until_settled(
    client: &Client,
    project: ProjectId,
    execution: ExecutionId,
    mut tell: impl FnMut(News),
) -> Result<Execution, Failure> {
    let mut follower = Follower {
        client,
        project,
        execution,
        seen: None,
        down: false,
        tries: 0,
    };
    loop {
        let cut = match follower.once(&mut tell).await {
            Ok(settled) => return Ok(settled),
            Err(err) if err.is_passing() => err,
            Err(err) => return Err(err),
        };
        if !follower.down {
            follower.down = true;
            tell(News::Lost(cut));
        }
        tokio::time::sleep(pause(follower.tries, chance())).await;
        follower.tries = follower.tries.saturating_add(1);
    }
}

struct Follower<'a> {
    client: &'a Client,
    project: ProjectId,
    execution: ExecutionId,
    /// The last event that was told: what comes again is not told again.
    seen: Option<i64>,
    /// Whether the loss of the connection was told, and its return not yet.
    down: bool,
    /// Reconnects since the last event, so that a control that only accepts connections is not stampeded either.
    tries: u32,
}

impl Follower<'_> {
    async fn once(&mut self, tell: &mut impl FnMut(News)) -> Result<Execution, Failure> {
        let id = self.execution.to_string();
        let events = Route::project(self.project, ["executions", &id, "events"]);
        let response = self.client.open(&events, self.seen).await?;
        if std::mem::take(&mut self.down) {
            tell(News::Back);
        }
        let mut stream = response.bytes_stream().eventsource();
        while let Some(event) = stream.next().await {
            let event = event.map_err(|err| self.broken(err))?;
            self.tries = 0;
            match event.event.as_str() {
                "invocation" => self.changed(&event, tell)?,
                "rollout" => tell(News::Rolled(parse(&event)?)),
                "settled" => {
                    return execution::read(self.client, self.project, self.execution).await;
                }
                // Asked again, control says whether another token is needed or a login only had to be renewed.
                "ended" => {
                    let problem: Problem = parse(&event)?;
                    return Err(Failure::Unreachable(format!(
                        "control ended the event stream: {}",
                        text::line(&problem.detail)
                    )));
                }
                // A newer control may tell more than this program understands.
                _ => {}
            }
        }
        Err(Failure::Unreachable(
            "the event stream ended before the execution was settled".to_owned(),
        ))
    }

    fn changed(&mut self, event: &Event, tell: &mut impl FnMut(News)) -> Result<(), Failure> {
        let change: TimelineEvent = parse(event)?;
        if self.seen.is_none_or(|seen| seen < change.id) {
            self.seen = Some(change.id);
            tell(News::Changed(change));
        }
        Ok(())
    }

    fn broken(&self, err: EventStreamError<reqwest::Error>) -> Failure {
        match err {
            EventStreamError::Transport(err) => self.client.lost(&err),
            EventStreamError::Utf8(_) | EventStreamError::Parser(_) => {
                Failure::Unexpected("the event stream is garbled".to_owned())
            }
        }
    }
}

fn parse<T: DeserializeOwned>(event: &Event) -> Result<T, Failure> {
    serde_json::from_str(&event.data)
        .map_err(|err| Failure::Unexpected(format!("a {} event is not understood: {err}", event.event)))
}

/// Doubles with every try; full jitter, so that many who wait do not come back at once.
fn pause(tries: u32, chance: u32) -> Duration {
    let longest = RETRY_FIRST.saturating_mul(1 << tries.min(10)).min(RETRY_LAST);
    longest
        .mul_f64(f64::from(chance) / f64::from(u32::MAX))
        .max(RETRY_FIRST / 2)
}

fn chance() -> u32 {
    getrandom::u32().unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_to_its_limit_and_is_never_nothing() {
        assert_eq!(pause(0, u32::MAX), RETRY_FIRST);
        assert_eq!(pause(2, u32::MAX), RETRY_FIRST * 4);
        assert_eq!(pause(u32::MAX, u32::MAX), RETRY_LAST);
        assert_eq!(pause(9, 0), RETRY_FIRST / 2);
    }
}
