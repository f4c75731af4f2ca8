//! `muster grant`: who may what.

use clap::Args;
use muster_shared::{
    access::{OperatorToken, RelationTuple, RelationTupleCreateRequest},
    ids::{NodeId, ProjectId},
    time::Timestamp,
    wire::Page,
};

use crate::{
    client::{Client, Route},
    exit::Exit,
    failure::Failure,
    lookup,
    session::Session,
    table::Table,
    text,
};

#[derive(Args, Debug)]
#[command(
    after_help = "Relations: operator and excluded on a domain; act, operator and excluded on a project; act and \
                        excluded on a node; member of a group."
)]
pub(crate) struct GrantArgs {
    /// user:NAME, group:NAME#member or token:UUID
    #[arg(required_unless_present = "list", conflicts_with = "list")]
    subject: Option<String>,
    /// act, operator, excluded or member
    #[arg(required_unless_present = "list")]
    relation: Option<String>,
    /// project, domain, resource:NODE, group:NAME, or as control writes it: project:UUID
    #[arg(required_unless_present = "list")]
    resource: Option<String>,
    /// List what was granted in this project and, to an operator of the domain, in all of it
    #[arg(long, conflicts_with = "delete")]
    list: bool,
    /// Take it away instead
    #[arg(long)]
    delete: bool,
}

fn tuples(project: ProjectId) -> Route {
    Route::new(["v1", "authz", "relation-tuples"]).with("project_id", Some(project))
}

pub(crate) async fn run(session: &Session, args: GrantArgs) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let (Some(subject), Some(relation), Some(resource)) = (args.subject, args.relation, args.resource) else {
        let all: Page<RelationTuple> = client.pages(&tuples(project), None).await?;
        session
            .screen
            .list(&all.items, "grants", |tuple| tuple.id.to_string(), table)?;
        return Ok(Exit::Success);
    };
    let resource = whole(&client, project, resource).await?;
    let request = RelationTupleCreateRequest {
        subject,
        relation,
        resource,
        ..RelationTupleCreateRequest::default()
    };
    let tuple: RelationTuple = if args.delete {
        delete(&client, project, &request).await?
    } else {
        client.post(&tuples(project), &request).await?
    };
    session.screen.one(
        &tuple,
        |tuple| tuple.id.to_string(),
        |tuple, wide| table(std::slice::from_ref(tuple), wide),
    )?;
    if args.delete {
        let words = format!(
            "taken away: {} {} {}",
            tuple.subject, tuple.relation, tuple.resource
        );
        session.screen.say(&text::line(&words));
    }
    Ok(Exit::Success)
}

/// What a person types for a resource, as control writes it.
async fn whole(client: &Client, project: ProjectId, typed: String) -> Result<String, Failure> {
    match (typed.as_str(), typed.split_once(':')) {
        ("project", _) => Ok(format!("project:{project}")),
        ("domain", _) => {
            let route = Route::new(["v1", "operator-tokens"]).with("project_id", Some(project));
            let own: Page<OperatorToken> = client.pages(&route, Some(1)).await?;
            let token = own.items.first().ok_or_else(|| {
                Failure::NoSuch("the domain has no token of its own: name it as domain:UUID".to_owned())
            })?;
            Ok(format!("domain:{}", token.domain_id))
        }
        (_, Some(("resource", node))) if node.parse::<NodeId>().is_err() => Ok(format!(
            "resource:{}",
            lookup::node_id(client, project, node).await?
        )),
        _ => Ok(typed),
    }
}

async fn delete(
    client: &Client,
    project: ProjectId,
    wanted: &RelationTupleCreateRequest,
) -> Result<RelationTuple, Failure> {
    let all: Page<RelationTuple> = client.pages(&tuples(project), None).await?;
    let same = |tuple: &&RelationTuple| {
        (&tuple.subject, &tuple.relation, &tuple.resource)
            == (&wanted.subject, &wanted.relation, &wanted.resource)
    };
    let found = all.items.iter().find(same).ok_or_else(|| {
        Failure::NoSuch(format!(
            "{} was not granted {} on {} (tuple_not_found)",
            wanted.subject, wanted.relation, wanted.resource
        ))
    })?;
    let route = Route::new(["v1", "authz", "relation-tuples", &found.id.to_string()]);
    client.delete(&route.with("project_id", Some(project))).await
}

fn table(tuples: &[RelationTuple], wide: bool) -> Table {
    let mut table = Table::new(&["SUBJECT", "RELATION", "RESOURCE", "AGE"], &["ID"], wide);
    for tuple in tuples {
        table.row([
            tuple.subject.as_str().into(),
            tuple.relation.as_str().into(),
            tuple.resource.as_str().into(),
            text::age(Timestamp::now(), tuple.created_at).into(),
            tuple.id.to_string().into(),
        ]);
    }
    table
}
