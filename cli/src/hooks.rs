//! `muster hooks`: the hooks of a project, whether they are what they were, and the approval of a new digest.

use clap::{Args, Subcommand};
use muster_shared::{
    ids::{ActionName, Digest, NodeId},
    time::Timestamp,
    wire::{ApproveRequest, ApproveResponse, HookState, Page},
};

use crate::{
    client::Route,
    exit::Exit,
    failure::Failure,
    lookup,
    session::Session,
    table::{Cell, Table},
    target::{Target, TargetArgs},
    text,
};

#[derive(Args, Debug)]
pub(crate) struct HooksArgs {
    #[command(subcommand)]
    command: Option<HooksCommand>,
}

#[derive(Subcommand, Debug)]
enum HooksCommand {
    /// Make a digest the baseline wherever the named nodes show exactly it
    Approve(ApproveArgs),
}

#[derive(Args, Debug)]
struct ApproveArgs {
    /// The hook
    name: ActionName,
    /// The whole digest, as `muster hooks -o wide` shows it
    #[arg(long)]
    digest: Digest,
    #[command(flatten)]
    target: TargetArgs,
}

pub(crate) async fn run(session: &Session, args: HooksArgs) -> Result<Exit, Failure> {
    match args.command {
        None => list(session).await,
        Some(HooksCommand::Approve(args)) => approve(session, args).await,
    }
}

async fn list(session: &Session) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let mut hooks: Page<HookState> = client.pages(&Route::project(project, ["hooks"]), None).await?;
    hooks
        .items
        .sort_by(|a, b| (&a.name, &a.node_name, a.node_id).cmp(&(&b.name, &b.node_name, b.node_id)));
    session.screen.list(
        &hooks.items,
        "hooks",
        |hook| hook.name.clone(),
        |hooks, wide| table(hooks, wide, Timestamp::now()),
    )?;
    for hook in &hooks.items {
        if let Some(why) = &hook.refused {
            let words = format!("{} on {} is refused: {why}", hook.name, hook.node_name);
            session.screen.say(&text::line(&words));
        }
    }
    Ok(Exit::Success)
}

fn table(hooks: &[HookState], wide: bool, now: Timestamp) -> Table {
    if wide {
        return wide_table(hooks);
    }
    let mut table = Table::new(&["NAME", "NODE", "VERDICT", "DIGEST", "PINNED"], &[], false);
    for hook in hooks {
        table.row([
            hook.name.as_str().into(),
            hook.node_name.as_str().into(),
            verdict(hook),
            hook.observed.map(text::digest_short).into(),
            hook.pinned_at.map(|at| text::age(now, at)).into(),
        ]);
    }
    table
}

/// With whole digests, as an approval takes them.
fn wide_table(hooks: &[HookState]) -> Table {
    let mut table = Table::new(
        &[
            "NAME", "NODE", "VERDICT", "OBSERVED", "BASELINE", "PINNED", "NODE ID",
        ],
        &[],
        false,
    );
    for hook in hooks {
        table.row([
            hook.name.as_str().into(),
            hook.node_name.as_str().into(),
            verdict(hook),
            hook.observed.into(),
            hook.baseline.into(),
            hook.pinned_at.into(),
            hook.node_id.to_string().into(),
        ]);
    }
    table
}

fn verdict(hook: &HookState) -> Cell {
    match hook.refused {
        Some(_) => Cell::odd("refused"),
        None => hook.verdict.into(),
    }
}

async fn approve(session: &Session, args: ApproveArgs) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let Target {
        selector,
        node_id,
        all,
    } = args.target.resolve(&client, project).await?;
    let request = ApproveRequest {
        digest: args.digest,
        selector,
        node_id,
        all,
    };
    let answer: ApproveResponse = client
        .post(
            &Route::project(project, ["hooks", args.name.as_str(), "approve"]),
            &request,
        )
        .await
        .map_err(|err| err.about_selector(request.selector.as_deref()))?;
    let names = lookup::names(&client, project).await.unwrap_or_default();
    let name = |id: &NodeId| names.get(id).cloned().unwrap_or_else(|| id.to_string());
    session.screen.one(
        &answer,
        |answer| answer.approved.iter().map(name).collect::<Vec<_>>(),
        |answer, _| outcome(answer, name),
    )?;
    if answer.approved.is_empty() {
        return Err(Failure::NoMatch(format!(
            "no node shows {} as {}",
            args.digest, args.name
        )));
    }
    Ok(Exit::Success)
}

fn outcome(answer: &ApproveResponse, name: impl Fn(&NodeId) -> String) -> Table {
    let mut table = Table::new(&["NODE", "RESULT"], &[], false);
    for node in &answer.approved {
        table.row([name(node).into(), Cell::good("approved")]);
    }
    for node in &answer.unchanged {
        table.row([name(node).into(), Cell::odd("unchanged")]);
    }
    table
}

#[cfg(test)]
mod tests {
    use muster_shared::wire::Verdict;

    use super::*;

    fn hook(verdict: Verdict) -> HookState {
        HookState {
            name: "backup".into(),
            node_id: NodeId::mint(Timestamp::from_millis(0), [1; 10]),
            node_name: "web-1".into(),
            observed: Some(Digest::of(b"abc")),
            baseline: None,
            verdict,
            refused: None,
            pinned_at: Some(Timestamp::from_millis(0)),
        }
    }

    #[test]
    fn a_hook_is_shown_with_its_verdict_and_enough_of_its_digest() {
        let now = Timestamp::from_millis(7_200_000);
        assert_eq!(
            table(&[hook(Verdict::Drift)], false, now).render(false),
            "NAME    NODE   VERDICT  DIGEST               PINNED\n\
             backup  web-1  drift    sha256:ba7816bf8f01  2h"
        );
    }

    #[test]
    fn the_wide_view_shows_what_an_approval_takes() {
        let wide = table(&[hook(Verdict::Drift)], true, Timestamp::from_millis(0)).render(false);
        assert!(wide.contains(&Digest::of(b"abc").to_string()), "{wide}");
    }

    #[test]
    fn an_approval_says_where_it_took_effect() {
        let node = |n| NodeId::mint(Timestamp::from_millis(0), [n; 10]);
        let answer = ApproveResponse {
            approved: vec![node(1)],
            unchanged: vec![node(2)],
        };
        let name = |id: &NodeId| {
            if *id == node(1) {
                "web-1".to_owned()
            } else {
                "web-2".to_owned()
            }
        };
        assert_eq!(
            outcome(&answer, name).render(false),
            "NODE   RESULT\nweb-1  approved\nweb-2  unchanged"
        );
    }
}
