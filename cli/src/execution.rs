//! `muster execution`: one dispatch, looked at, waited for, read.

use std::time::Duration;

use clap::{Args, Subcommand};
use muster_shared::{
    ids::{ExecutionId, ProjectId},
    wire::{Execution, ExecutionDetail, ExecutionTarget, Page, TimelineEvent},
};

use crate::{
    client::{Client, Route},
    execution_cancel::{self, CancelArgs},
    execution_output::{self, OutputArgs},
    execution_rollout::{self, RolloutArgs},
    execution_show,
    exit::Exit,
    failure::Failure,
    session::Session,
    wait,
};

#[derive(Subcommand, Debug)]
pub(crate) enum ExecutionCommand {
    /// Where it stands, node by node, and how it came there
    Show(ShowArgs),
    /// Wait until every node has ended; the exit code is that of `run --wait`
    Watch(WatchArgs),
    /// Take it back: what waits never runs, what runs is ended
    Cancel(CancelArgs),
    /// Hold its rollout back: what was released goes on, nothing more is
    Pause(RolloutArgs),
    /// Let a paused rollout go on
    Resume(RolloutArgs),
    /// What the action wrote
    Output(OutputArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The execution's id
    id: ExecutionId,
    /// Also every step of every node, in the order in which control took them
    #[arg(long)]
    timeline: bool,
}

#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// The execution's id
    id: ExecutionId,
    /// Stop waiting after this long; the execution goes on
    #[arg(long, value_name = "DURATION", value_parser = wait::duration)]
    wait_timeout: Option<Duration>,
}

pub(crate) async fn run(session: &Session, command: ExecutionCommand) -> Result<Exit, Failure> {
    match command {
        ExecutionCommand::Show(args) => show(session, &args).await,
        ExecutionCommand::Watch(args) => watch(session, &args).await,
        ExecutionCommand::Cancel(args) => execution_cancel::run(session, &args).await,
        ExecutionCommand::Pause(args) => execution_rollout::pause(session, &args).await,
        ExecutionCommand::Resume(args) => execution_rollout::resume(session, &args).await,
        ExecutionCommand::Output(args) => execution_output::run(session, &args).await,
    }
}

/// The execution with all of its targets, of however many answers that takes.
pub(crate) async fn read(client: &Client, project: ProjectId, id: ExecutionId) -> Result<Execution, Failure> {
    Ok(detail(client, project, id).await?.execution)
}

async fn detail(client: &Client, project: ProjectId, id: ExecutionId) -> Result<ExecutionDetail, Failure> {
    let id = id.to_string();
    let mut detail: ExecutionDetail = client.get(&Route::project(project, ["executions", &id])).await?;
    if let Some(cursor) = detail.targets_cursor.take() {
        let rest = Route::project(project, ["executions", &id, "targets"]);
        let rest: Page<ExecutionTarget> = client.pages_from(&rest, Some(cursor), None).await?;
        detail.execution.targets.extend(rest.items);
    }
    Ok(detail)
}

async fn show(session: &Session, args: &ShowArgs) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let mut detail = detail(&client, project, args.id).await?;
    if args.timeline
        && let Some(cursor) = detail.timeline_cursor.take()
    {
        let rest = Route::project(project, ["executions", &args.id.to_string(), "timeline"]);
        let rest: Page<TimelineEvent> = client.pages_from(&rest, Some(cursor), None).await?;
        detail.timeline.extend(rest.items);
    }
    execution_show::describe(&session.screen, &detail, args.timeline)?;
    Ok(Exit::Success)
}

async fn watch(session: &Session, args: &WatchArgs) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let mut execution = read(&client, project, args.id).await?;
    if !execution.status.is_terminal() {
        execution =
            wait::until_settled(&client, project, &execution, args.wait_timeout, &session.screen).await?;
    }
    execution_show::report(&session.screen, &execution)?;
    Ok(wait::exit_of(&execution))
}
