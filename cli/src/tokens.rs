//! `muster tokens`: what lets a machine enrol, and what lets an operator in.

use std::time::Duration;

use clap::{Args, Subcommand};
use muster_shared::{
    access::{
        BootstrapTokenState, CreateOperatorTokenRequest, OperatorToken, OperatorTokenSecret,
        RotateTokenRequest,
    },
    ids::{ProjectId, RowId},
    labels::{self, Labels},
    time::{Timestamp, parse_duration},
    wire::{IssueTokenRequest, IssuedToken, Page},
};
use serde::Serialize;

use crate::{
    client::{Client, Route},
    exit::Exit,
    failure::Failure,
    render::Format,
    seconds,
    session::Session,
    table::{Cell, Table},
    text,
};

#[derive(Subcommand, Debug)]
pub(crate) enum TokensCommand {
    /// Mint a bootstrap token; this is the only time it is shown
    Issue(IssueArgs),
    /// Mint an operator token, which may do nothing until `muster grant` gives it something; this is the only time it is
    /// shown
    IssueOperator(IssueOperatorArgs),
    /// List operator tokens and bootstrap tokens, without their secrets
    List,
    /// Revoke a token of either kind, for good
    Revoke(TokenArg),
    /// Give an operator token a new secret; what it was granted stays
    Rotate(RotateArgs),
}

#[derive(Args, Debug)]
pub(crate) struct IssueOperatorArgs {
    /// What the token is called in lists
    name: String,
    /// How long it lasts: 1m to 3650d, which is 10 years; for ever when left out
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    ttl: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct TokenArg {
    /// Its id; of an operator token also its name
    token: String,
}

#[derive(Args, Debug)]
pub(crate) struct RotateArgs {
    /// Its name or id
    token: String,
    /// How long the former secret still counts, at most 7d
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    overlap: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct IssueArgs {
    /// Labels for the nodes that enrol with it: role=web,tier=1
    #[arg(long, value_name = "K=V,...", value_parser = given_labels)]
    labels: Option<Labels>,
    /// How many nodes may enrol with it (control's default: 1)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    uses: Option<u32>,
    /// How long it lasts: 5m to 24h (control's default: 1h)
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    ttl: Option<Duration>,
}

impl IssueOperatorArgs {
    fn request(self) -> CreateOperatorTokenRequest {
        CreateOperatorTokenRequest {
            name: self.name,
            ttl_seconds: self.ttl.map(seconds::whole),
        }
    }
}

impl RotateArgs {
    const fn request(&self) -> RotateTokenRequest {
        RotateTokenRequest {
            overlap_seconds: seconds::whole(self.overlap),
        }
    }
}

impl IssueArgs {
    fn request(self) -> IssueTokenRequest {
        IssueTokenRequest {
            labels: self.labels.unwrap_or_default(),
            uses: self.uses,
            ttl_seconds: self.ttl.map(seconds::whole),
        }
    }
}

pub(crate) async fn run(session: &Session, command: TokensCommand) -> Result<Exit, Failure> {
    match command {
        TokensCommand::Issue(args) => issue(session, args).await,
        TokensCommand::IssueOperator(args) => issue_operator(session, args).await,
        TokensCommand::List => list(session).await,
        TokensCommand::Revoke(args) => revoke(session, &args.token).await,
        TokensCommand::Rotate(args) => rotate(session, args).await,
    }
}

/// A token of either kind, as lists show it.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum AnyToken {
    Operator(OperatorToken),
    Bootstrap(BootstrapTokenState),
}

impl AnyToken {
    const fn id(&self) -> RowId {
        match self {
            Self::Operator(token) => token.id,
            Self::Bootstrap(token) => token.id,
        }
    }

    /// Whether this is what was typed. A name may have been that of a revoked token before.
    fn is(&self, wanted: &str) -> bool {
        match self {
            Self::Operator(token) if token.revoked_at.is_none() && token.name == wanted => true,
            Self::Operator(_) | Self::Bootstrap(_) => self.id().to_string() == wanted,
        }
    }

    /// Whether it has admitted all that it could.
    const fn is_used_up(&self) -> bool {
        match self {
            Self::Operator(_) => false,
            Self::Bootstrap(token) => token.uses >= token.uses_max,
        }
    }

    fn row(&self, now: Timestamp) -> [Cell; 7] {
        let (kind, name, made, by, expires, revoked) = match self {
            Self::Operator(token) => (
                "operator",
                token.name.clone(),
                token.created_at,
                &token.created_by,
                token.expires_at,
                token.revoked_at,
            ),
            Self::Bootstrap(token) => (
                "bootstrap",
                format!("{} of {} uses", token.uses, token.uses_max),
                token.created_at,
                &token.issued_by,
                Some(token.expires_at),
                token.revoked_at,
            ),
        };
        let state = match (revoked, expires) {
            (Some(_), _) => Cell::odd("revoked"),
            (None, Some(at)) if at <= now => Cell::odd("expired"),
            (None, _) if self.is_used_up() => Cell::odd("used up"),
            (None, _) => Cell::good("valid"),
        };
        [
            self.id().to_string().into(),
            kind.into(),
            name.into(),
            state,
            text::age(now, made).into(),
            expires.into(),
            by.as_str().into(),
        ]
    }
}

fn of_domain(project: ProjectId) -> Route {
    Route::new(["v1", "operator-tokens"]).with("project_id", Some(project))
}

/// Every token that the caller may see. Those of operators are the domain's: who operates the project alone sees the
/// others.
async fn all(client: &Client, project: ProjectId, session: &Session) -> Result<Vec<AnyToken>, Failure> {
    let operators: Result<Page<OperatorToken>, Failure> = client.pages(&of_domain(project), None).await;
    let operators = match operators {
        Ok(page) => page.items,
        Err(failure) if failure.is_code("permission_denied") => {
            session
                .screen
                .say("operator tokens are left out: they need the relation operator on the domain");
            Vec::new()
        }
        Err(failure) => return Err(failure),
    };
    let route = Route::project(project, ["bootstrap-tokens"]);
    let bootstrap: Page<BootstrapTokenState> = client.pages(&route, None).await?;
    Ok(operators
        .into_iter()
        .map(AnyToken::Operator)
        .chain(bootstrap.items.into_iter().map(AnyToken::Bootstrap))
        .collect())
}

async fn find(
    client: &Client,
    project: ProjectId,
    session: &Session,
    wanted: &str,
) -> Result<AnyToken, Failure> {
    let tokens = all(client, project, session).await?;
    tokens
        .into_iter()
        .find(|token| token.is(wanted))
        .ok_or_else(|| Failure::NoSuch(format!("no token is {wanted:?} (token_not_found)")))
}

fn table(tokens: &[AnyToken], wide: bool) -> Table {
    let header = ["ID", "KIND", "NAME", "STATE", "AGE", "EXPIRES"];
    let mut table = Table::new(&header, &["BY"], wide);
    for token in tokens {
        table.row(token.row(Timestamp::now()));
    }
    table
}

async fn list(session: &Session) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let tokens = all(&client, project, session).await?;
    session
        .screen
        .list(&tokens, "tokens", |token| token.id().to_string(), table)?;
    Ok(Exit::Success)
}

async fn revoke(session: &Session, wanted: &str) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let revoked = match find(&client, project, session, wanted).await? {
        AnyToken::Operator(token) => {
            let route = Route::new(["v1", "operator-tokens", &token.id.to_string()]);
            AnyToken::Operator(client.delete(&route).await?)
        }
        AnyToken::Bootstrap(token) => {
            let route = Route::project(project, ["bootstrap-tokens", &token.id.to_string()]);
            AnyToken::Bootstrap(client.delete(&route).await?)
        }
    };
    session.screen.one(
        &revoked,
        |token| token.id().to_string(),
        |token, wide| table(std::slice::from_ref(token), wide),
    )?;
    Ok(Exit::Success)
}

async fn issue_operator(session: &Session, args: IssueOperatorArgs) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let made: OperatorTokenSecret = client.post(&of_domain(project), &args.request()).await?;
    session.screen.say(&format!(
        "it is not shown again, and may do nothing yet. To let it act in this project and on all of its nodes:\n  \
         muster grant token:{} operator project",
        made.about.id
    ));
    show_secret(session, &made)
}

async fn rotate(session: &Session, args: RotateArgs) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let AnyToken::Operator(token) = find(&client, project, session, &args.token).await? else {
        return Err(Failure::Usage(
            "a bootstrap token is not rotated: revoke it and issue another".to_owned(),
        ));
    };
    let route = Route::new(["v1", "operator-tokens", &token.id.to_string(), "rotate"]);
    let made: OperatorTokenSecret = client.post(&route, &args.request()).await?;
    session.screen.say("it is not shown again");
    show_secret(session, &made)
}

fn show_secret(session: &Session, made: &OperatorTokenSecret) -> Result<Exit, Failure> {
    match session.screen.format() {
        Format::Json => session.screen.json(made)?,
        Format::Table | Format::Wide | Format::Name | Format::Raw => session.screen.print(&made.token)?,
    }
    Ok(Exit::Success)
}

async fn issue(session: &Session, args: IssueArgs) -> Result<Exit, Failure> {
    let (client, project) = session.control()?;
    let issued: IssuedToken = client
        .post(&Route::project(project, ["bootstrap-tokens"]), &args.request())
        .await?;
    let uses = text::count(usize::try_from(issued.uses).unwrap_or(usize::MAX), "node");
    session.screen.say(&format!(
        "good for {uses} until {}; it is not shown again. On the node, with the token in a file:\n  \
         musterd enroll --server {} --token-file FILE {}",
        issued.expires_at,
        client.server(),
        client.trust()
    ));
    match session.screen.format() {
        Format::Json => session.screen.json(&issued)?,
        Format::Table | Format::Wide | Format::Name | Format::Raw => session.screen.print(&issued.token)?,
    }
    Ok(Exit::Success)
}

fn given_labels(raw: &str) -> Result<Labels, labels::BadLabel> {
    let labels = labels::parse_list(raw)?;
    labels::check_given(&labels)?;
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_admitted_all_that_it_could_is_not_valid() {
        let state = |uses, expires| {
            let token = AnyToken::Bootstrap(BootstrapTokenState {
                id: RowId::mint(Timestamp::from_millis(0), [1; 10]),
                project_id: ProjectId::mint(Timestamp::from_millis(0), [2; 10]),
                labels: Labels::new(),
                uses,
                uses_max: 2,
                issued_by: "token:1".to_owned(),
                created_at: Timestamp::from_millis(0),
                expires_at: Timestamp::from_millis(expires),
                revoked_at: None,
            });
            let mut table = Table::new(&[""; 6], &[""], true);
            table.row(token.row(Timestamp::from_millis(1_000)));
            table.render(false)
        };
        assert!(
            state(1, 9_000).contains("1 of 2 uses  valid"),
            "{}",
            state(1, 9_000)
        );
        assert!(state(2, 9_000).contains("2 of 2 uses  used up"));
        assert!(state(2, 1_000).contains("2 of 2 uses  expired"));
    }

    #[test]
    fn no_token_and_no_former_secret_lasts_for_nothing_by_a_fraction() {
        let half = Duration::from_millis(500);
        let bootstrap = IssueArgs {
            labels: None,
            uses: None,
            ttl: Some(half),
        };
        assert_eq!(bootstrap.request().ttl_seconds, Some(1));
        let operator = IssueOperatorArgs {
            name: "ci".to_owned(),
            ttl: Some(half),
        };
        assert_eq!(operator.request().ttl_seconds, Some(1));
        let rotate = RotateArgs {
            token: "ci".to_owned(),
            overlap: half,
        };
        assert_eq!(rotate.request().overlap_seconds, 1);
    }
}
