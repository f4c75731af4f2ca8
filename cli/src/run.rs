//! `muster run`: dispatches one action to a cohort and, if asked, waits for what becomes of it.

use std::{num::NonZeroU32, time::Duration};

use clap::Args;
use muster_shared::{
    ids::{ActionName, ProjectId},
    wire::{ActionDetail, Amount, DispatchPreview, DispatchRequest, Execution, RolloutRequest},
};
use serde_json::Value;

use crate::{
    client::{Client, Route},
    execution_rollout, execution_show,
    exit::Exit,
    failure::Failure,
    lookup::{self, NodeNames},
    params::ParamArgs,
    preview, problem,
    render::Format,
    resend, seconds,
    session::Session,
    target::{Target, TargetArgs},
    text, wait,
};

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// A builtin, or a hook that the nodes declare
    action: ActionName,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    params: ParamArgs,
    /// How long the execution may take: 90s, 15m, 2h; at most 24h. 30 means seconds. Without, the longest that the hooks' manifests
    /// give, else 5m
    #[arg(long, value_name = "DURATION", value_parser = wait::duration)]
    timeout: Option<Duration>,
    /// How long a node has to take it; --timeout is then how long it may run from there. Without, both share --timeout
    #[arg(long, value_name = "DURATION", value_parser = wait::duration)]
    deliver_within: Option<Duration>,
    #[command(flatten)]
    rollout: RolloutArgs,
    /// Show which nodes it would run on and which not, and send nothing to them
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
    /// Refuse unless exactly this many nodes are left after the gates
    #[arg(long, value_name = "N")]
    expect: Option<NonZeroU32>,
    /// Refuse when more nodes than this are left after the gates
    #[arg(long, value_name = "N")]
    max_targets: Option<NonZeroU32>,
    /// Show progress and end when every node has
    #[arg(long)]
    wait: bool,
    /// Stop waiting after this long; the execution goes on
    #[arg(long, value_name = "DURATION", requires = "wait", value_parser = wait::duration)]
    wait_timeout: Option<Duration>,
}

/// That it goes out in steps.
#[derive(Args, Debug)]
struct RolloutArgs {
    /// How far each wave reaches into the cohort, by name: 1,10%,100%. One opens when those before it have ended
    #[arg(long, value_name = "N|N%", value_delimiter = ',', value_parser = amount, help_heading = "Rollout")]
    waves: Vec<Amount>,
    /// How many nodes may have it at a time
    #[arg(long, value_name = "N|N%", value_parser = amount, help_heading = "Rollout")]
    max_concurrency: Option<Amount>,
    /// With more failures and timeouts than this, the nodes that have not got it never do [default: 0]
    #[arg(long, value_name = "N|N%", value_parser = amount, help_heading = "Rollout")]
    max_failures: Option<Amount>,
}

impl RolloutArgs {
    fn request(self) -> Result<Option<RolloutRequest>, Failure> {
        let Self {
            waves,
            max_concurrency,
            max_failures,
        } = self;
        if !waves.is_empty() || max_concurrency.is_some() {
            return Ok(Some(RolloutRequest {
                waves,
                max_concurrency,
                max_failures,
            }));
        }
        match max_failures {
            None => Ok(None),
            Some(_) => Err(Failure::Usage(
                "--max-failures stops nothing by itself: everything goes out at once; add --waves or --max-concurrency"
                    .to_owned(),
            )),
        }
    }
}

/// Control checks what it comes to; a variable that was lost is known here.
fn amount(raw: &str) -> Result<Amount, String> {
    if raw.is_empty() {
        return Err("it is empty; it must be a count or a percentage, such as 5 or 10%".to_owned());
    }
    Ok(Amount::Text(raw.to_owned()))
}

pub(crate) async fn run(session: &Session, args: RunArgs) -> Result<Exit, Failure> {
    let screen = &session.screen;
    let rollout = args.rollout.request()?;
    let (client, project) = session.control()?;
    let schemas = if args.params.has_text() {
        schemas(&client, project, &args.action).await
    } else {
        Vec::new()
    };
    let parameters = args.params.collect(&schemas)?;
    let Target {
        selector,
        node_id,
        all,
    } = args.target.resolve(&client, project).await?;
    let request = DispatchRequest {
        action: args.action.to_string(),
        kind: None,
        parameters,
        timeout_seconds: args.timeout.map(whole_seconds),
        selector,
        node_id,
        all,
        expect: args.expect,
        max_targets: args.max_targets,
        deliver_within_seconds: args.deliver_within.map(whole_seconds),
        rollout,
    };
    let dispatch = Route::project(project, ["executions", "dispatch"]);
    if args.dry_run {
        let preview = Route::project(project, ["executions", "preview"]);
        let preview: DispatchPreview = match client.post(&preview, &request).await {
            Ok(preview) => preview,
            Err(err) => return Err(explained(&client, project, &request, err).await),
        };
        let names = lookup::names_of(&client, project, &preview.dropped).await;
        preview::show(screen, &preview, &names)?;
        return Ok(Exit::Success);
    }
    // The handler stands before anything is sent: from there on, that nothing was done is not known.
    let answered = tokio::select! {
        biased;
        () = wait::interrupted() => return Err(Failure::InterruptedSending { action: args.action }),
        answered = resend::until_answered::<Execution>(&client, &dispatch, &request) => answered,
    };
    let dispatched = match answered {
        Ok(dispatched) => dispatched,
        Err(err) => return Err(explained(&client, project, &request, err).await),
    };
    let names = lookup::names_of(&client, project, &dispatched.dropped).await;
    screen.say(&announcement(&dispatched, &names));
    if !args.wait {
        match screen.format() {
            Format::Json => screen.json(&dispatched)?,
            Format::Table | Format::Wide | Format::Name | Format::Raw => {
                screen.print(&dispatched.id.to_string())?
            }
        }
        return Ok(Exit::Success);
    }
    let settled = wait::until_settled(&client, project, &dispatched, args.wait_timeout, screen).await?;
    execution_show::report(screen, &settled)?;
    Ok(wait::exit_of(&settled))
}

/// A refusal with what it is about: the selector, and the nodes by their names.
async fn explained(client: &Client, project: ProjectId, request: &DispatchRequest, err: Failure) -> Failure {
    lookup::named(client, project, err)
        .await
        .about_selector(request.selector.as_deref())
}

/// The schemas that nodes declare for the action, or none: then every text stays a text, and control judges it.
async fn schemas(client: &Client, project: ProjectId, action: &ActionName) -> Vec<Value> {
    let route = Route::project(project, ["actions", action.as_str()]);
    let detail: Result<ActionDetail, _> = client.get(&route).await;
    let Ok(detail) = detail else { return Vec::new() };
    let declared = detail.nodes.into_iter().map(|node| {
        let manifest = node.manifest.unwrap_or_default();
        manifest.parameters.unwrap_or_default()
    });
    declared.collect()
}

fn whole_seconds(timeout: Duration) -> i64 {
    i64::try_from(seconds::whole(timeout)).unwrap_or(i64::MAX)
}

fn announcement(execution: &Execution, dropped: &NodeNames) -> String {
    let nodes = usize::try_from(execution.target_count()).unwrap_or(usize::MAX);
    let nodes = text::count(nodes, "node");
    let mut words = format!("dispatched {} to {nodes} as {}", execution.action, execution.id);
    if let Some(rollout) = &execution.rollout {
        words.push_str(&format!("\n{}", execution_rollout::plan(&rollout.plan)));
    }
    if !execution.dropped.is_empty() {
        words.push('\n');
        words.push_str(&problem::dropped(&execution.dropped, dropped));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_whole_seconds_and_no_more_than_fits() {
        assert_eq!(whole_seconds(Duration::from_millis(1)), 1);
        assert_eq!(whole_seconds(Duration::from_secs(90)), 90);
        assert_eq!(whole_seconds(Duration::from_secs(u64::MAX)), i64::MAX);
    }
}
