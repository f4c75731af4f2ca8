//! `muster execution pause` and `resume`: holds a rollout back, and lets it go on. Also a rollout in words.

use clap::Args;
use muster_shared::{
    ids::ExecutionId,
    wire::{Execution, PauseRequest, Rollout, RolloutPlan, RolloutState},
};

use crate::{client::Route, execution, execution_show, exit::Exit, failure::Failure, session::Session, text};

#[derive(Args, Debug)]
pub(crate) struct RolloutArgs {
    /// The execution's id
    id: ExecutionId,
}

pub(crate) async fn pause(session: &Session, args: &RolloutArgs) -> Result<Exit, Failure> {
    say(session, args, "pause").await
}

pub(crate) async fn resume(session: &Session, args: &RolloutArgs) -> Result<Exit, Failure> {
    say(session, args, "resume").await
}

async fn say(session: &Session, args: &RolloutArgs, word: &str) -> Result<Exit, Failure> {
    let screen = &session.screen;
    let (client, project) = session.control()?;
    let route = Route::project(project, ["executions", &args.id.to_string(), word]);
    let _: Execution = client.post(&route, &PauseRequest {}).await?;
    // The answer has no more than the first targets.
    let execution = execution::read(&client, project, args.id).await?;
    if let Some(rollout) = &execution.rollout {
        screen.say(&words(rollout));
    }
    execution_show::report(screen, &execution)?;
    Ok(Exit::Success)
}

/// Where it stands, and on a line of its own why it stopped.
pub(crate) fn words(rollout: &Rollout) -> String {
    match &rollout.reason {
        Some(reason) => format!("rollout {}\n  {}", standing(rollout), text::line(reason)),
        None => format!("rollout {}", standing(rollout)),
    }
}

pub(crate) fn standing(rollout: &Rollout) -> String {
    let paused = match (rollout.state, &rollout.paused_by) {
        (RolloutState::Paused, Some(by)) => format!("; paused by {}", text::line(by)),
        (
            RolloutState::Rolling | RolloutState::Paused | RolloutState::Stopped | RolloutState::Done,
            Some(_) | None,
        ) => String::new(),
    };
    format!(
        "{}: wave {} of {}, {} in flight, {} held, {} failed of at most {}{paused}",
        rollout.state.as_str(),
        rollout.wave,
        rollout.plan.waves.len(),
        rollout.in_flight,
        rollout.held,
        rollout.failed,
        rollout.plan.max_failures,
    )
}

/// The waves with their sizes, and what bounds them.
pub(crate) fn plan(plan: &RolloutPlan) -> String {
    let waves: Vec<_> = plan
        .waves
        .iter()
        .map(|wave| match wave.asked == wave.up_to.to_string() {
            true => format!("up to {} (+{})", wave.up_to, wave.targets),
            false => format!(
                "{} = up to {} (+{})",
                text::line(&wave.asked),
                wave.up_to,
                wave.targets
            ),
        })
        .collect();
    let concurrency = plan
        .max_concurrency
        .map_or_else(String::new, |max| format!(", at most {max} at a time"));
    format!(
        "{} by name: {}{concurrency}; stops after more than {}",
        text::count(plan.waves.len(), "wave"),
        waves.join(", "),
        text::count(
            usize::try_from(plan.max_failures).unwrap_or(usize::MAX),
            "failure"
        ),
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use muster_shared::{time::Timestamp, wire::RolloutWave};

    use super::*;

    pub(crate) fn rollout() -> Rollout {
        let wave = |asked: &str, up_to, targets| RolloutWave {
            asked: asked.to_owned(),
            up_to,
            targets,
        };
        Rollout {
            state: RolloutState::Rolling,
            reason: None,
            plan: RolloutPlan {
                waves: vec![wave("1", 1, 1), wave("10%", 3, 2), wave("100%", 30, 27)],
                max_concurrency: Some(5),
                max_failures: 1,
            },
            wave: 2,
            held: 27,
            in_flight: 2,
            failed: 0,
            paused_at: None,
            paused_by: None,
            ends_at: Timestamp::from_millis(0),
        }
    }

    #[test]
    fn a_rollout_is_one_line_and_why_it_stopped_another() {
        let mut rollout = rollout();
        assert_eq!(
            words(&rollout),
            "rollout rolling: wave 2 of 3, 2 in flight, 27 held, 0 failed of at most 1"
        );
        rollout.state = RolloutState::Paused;
        rollout.paused_by = Some("token:1".into());
        assert!(words(&rollout).ends_with("; paused by token:1"));
        rollout.state = RolloutState::Stopped;
        rollout.reason = Some("rollout stopped: 2 failures, max_failures is 1".into());
        assert!(words(&rollout).ends_with("\n  rollout stopped: 2 failures, max_failures is 1"));
    }

    #[test]
    fn a_plan_shows_what_its_waves_come_to() {
        assert_eq!(
            plan(&rollout().plan),
            "3 waves by name: up to 1 (+1), 10% = up to 3 (+2), 100% = up to 30 (+27), at most 5 at a time; \
             stops after more than 1 failure"
        );
    }
}
