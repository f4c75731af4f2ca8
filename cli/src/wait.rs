//! Waits for an execution on behalf of a person: progress, the limit on waiting, Ctrl-C.

use std::{future, time::Duration};

use muster_shared::{
    ids::{NodeId, ProjectId},
    time::parse_duration,
    wire::Execution,
};
use tokio::sync::Notify;

use crate::{
    client::Client,
    execution,
    exit::Exit,
    failure::Failure,
    follow::{self, News},
    progress::Progress,
    render::{Format, Screen},
    stopped::{Stands, Stopped, Why},
};

/// How long the last look at an execution may take that nobody waits for any more.
const LAST_LOOK_MAX: Duration = Duration::from_secs(2);

/// Ends with the settled execution, however often control goes away meanwhile.
pub(crate) async fn until_settled(
    client: &Client,
    project: ProjectId,
    execution: &Execution,
    limit: Option<Duration>,
    screen: &Screen,
) -> Result<Execution, Failure> {
    let wait = Wait {
        execution,
        node: None,
        limit,
        stands: Stands::Execution,
    };
    until_ended(client, project, &wait, screen).await
}

/// What is waited for, and for how long.
pub(crate) struct Wait<'a> {
    pub(crate) execution: &'a Execution,
    /// No longer than until this node has ended it.
    pub(crate) node: Option<NodeId>,
    pub(crate) limit: Option<Duration>,
    pub(crate) stands: Stands,
}

/// The same for any wait.
pub(crate) async fn until_ended(
    client: &Client,
    project: ProjectId,
    wait: &Wait<'_>,
    screen: &Screen,
) -> Result<Execution, Failure> {
    let why = match ended_or_stopped(client, project, wait, screen).await {
        Ok(ended) => return Ok(ended),
        Err(why) => why,
    };
    // Why it stopped is worth more than that this could not be written.
    let _ = show_unfinished(client, project, wait.execution, screen).await;
    Err(Failure::Stopped(Stopped {
        execution: wait.execution.id,
        why,
        stands: wait.stands,
    }))
}

/// For programs: which execution it is, and where it stands.
async fn show_unfinished(
    client: &Client,
    project: ProjectId,
    execution: &Execution,
    screen: &Screen,
) -> Result<(), Failure> {
    match screen.format() {
        Format::Json => {
            let now = tokio::select! {
                now = execution::read(client, project, execution.id) => now.ok(),
                () = tokio::time::sleep(LAST_LOOK_MAX) => None,
                () = interrupted() => None,
            };
            screen.json(now.as_ref().unwrap_or(execution))
        }
        Format::Name => screen.print(&execution.id.to_string()),
        Format::Table | Format::Wide | Format::Raw => Ok(()),
    }
}

async fn ended_or_stopped(
    client: &Client,
    project: ProjectId,
    wait: &Wait<'_>,
    screen: &Screen,
) -> Result<Execution, Why> {
    let Wait {
        execution,
        node,
        limit,
        stands: _,
    } = *wait;
    let mut progress = Progress::new(screen, execution);
    let ended = Notify::new();
    let mut tell = |news: News| {
        if let News::Changed(event) = &news
            && Some(event.node_id) == node
            && event.to.is_terminal()
        {
            ended.notify_one();
        }
        progress.tell(news);
    };
    let over = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => future::pending().await,
        }
    };
    tokio::select! {
        settled = follow::until_settled(client, project, execution.id, &mut tell) => settled.map_err(failed),
        () = ended.notified() => execution::read(client, project, execution.id).await.map_err(failed),
        () = over => Err(Why::Over(limit.unwrap_or_default())),
        () = interrupted() => Err(Why::Interrupted),
    }
}

fn failed(failure: Failure) -> Why {
    Why::Failed(Box::new(failure))
}

/// Ends with the next Ctrl-C.
pub(crate) async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Where the signal cannot be caught, it ends the program by itself.
        future::pending::<()>().await;
    }
}

/// The exit code that a settled execution earns.
pub(crate) fn exit_of(execution: &Execution) -> Exit {
    Exit::of_targets(execution.target_counts.keys().copied())
}

/// A duration, as an argument, that is longer than nothing.
pub(crate) fn duration(raw: &str) -> Result<Duration, String> {
    let duration = parse_duration(raw)?;
    if duration.is_zero() {
        Err("it must be longer than nothing".to_owned())
    } else {
        Ok(duration)
    }
}
