//! Bootstrap tokens, and the enrolment of a node by one.

use std::time::Duration;

use muster_shared::{
    ids::{Digest, NodeId, RowId},
    labels::{self, BadLabel, LABELS_SAID_MAX, Labels, NODE_PREFIX},
    time::Timestamp,
    wire::{
        BOOTSTRAP_TTL_SECONDS_MAX as TTL_SECONDS_MAX, BOOTSTRAP_TTL_SECONDS_MIN as TTL_SECONDS_MIN,
        BOOTSTRAP_USES_MAX as USES_MAX, EnrollRequest, EnrollResponse, HOSTNAME_LEN_MAX, IssueTokenRequest,
        IssuedToken, MACHINE_ID_LEN_MAX,
    },
};

use crate::{
    audit::{self, Entry, Outcome},
    authz,
    control::Control,
    keys::{TokenKind, chance, token_hash},
    rate::TooOften,
    refusals::{self, Kind, Refused, Turn},
    store::{BootstrapToken, Enrolled, NewBootstrapToken, NewNode, Project, StoreError, Tx},
};

/// Defaults of a bootstrap token.
const USES_DEFAULT: u32 = 1;
const TTL_SECONDS_DEFAULT: u64 = 60 * 60;
/// How many nodes of one hostname are told apart by a number before a name must be given up.
const NAME_TRIES_MAX: u32 = 10_000;

/// What an enrolment is called in the audit trail.
const ENROLL: &str = "node.enroll";

/// Why a token admits no more, and how that is counted.
type Shut = (EnrollError, &'static str);

#[derive(Debug, thiserror::Error)]
pub(crate) enum EnrollError {
    #[error("uses is {0}; it must be from 1 to {USES_MAX}")]
    BadUses(u32),
    #[error("ttl_seconds is {0}; it must be from {TTL_SECONDS_MIN} (5 min) to {TTL_SECONDS_MAX} (24 h)")]
    BadTtl(u64),
    #[error("{0}")]
    BadLabel(#[from] BadLabel),
    #[error(
        "hostname must have 1 to {HOSTNAME_LEN_MAX} bytes and machine_id 1 to {MACHINE_ID_LEN_MAX}, without control characters"
    )]
    BadHost,
    #[error("no such bootstrap token")]
    TokenInvalid,
    #[error("the bootstrap token was revoked at {0}; issue another")]
    TokenRevoked(Timestamp),
    #[error("the bootstrap token expired at {0}; issue another")]
    TokenExpired(Timestamp),
    #[error("the bootstrap token has been used as often as it may be ({0} times); issue another")]
    TokenUsed(u32),
    #[error("the node {name} that this enrolment made was decommissioned at {at}; issue another token")]
    Decommissioned { name: String, at: Timestamp },
    #[error("{NAME_TRIES_MAX} nodes are named like {0:?}; change the hostname")]
    NameExhausted(String),
    #[error(transparent)]
    TooOften(#[from] TooOften),
    #[error("the enrolment could not be stored")]
    Store(#[from] StoreError),
    #[error("the system gave no random bytes")]
    Chance(#[from] std::io::Error),
}

/// Issues a bootstrap token. Its hash is durable before it is shown.
pub(crate) async fn issue(
    control: &Control,
    project: &Project,
    issued_by: &str,
    request: IssueTokenRequest,
    now: Timestamp,
) -> Result<IssuedToken, EnrollError> {
    let uses = request.uses.unwrap_or(USES_DEFAULT);
    if !(1..=USES_MAX).contains(&uses) {
        return Err(EnrollError::BadUses(uses));
    }
    let ttl = request.ttl_seconds.unwrap_or(TTL_SECONDS_DEFAULT);
    if !(TTL_SECONDS_MIN..=TTL_SECONDS_MAX).contains(&ttl) {
        return Err(EnrollError::BadTtl(ttl));
    }
    labels::check_given(&request.labels)?;
    let token = TokenKind::Bootstrap.mint()?;
    let new = NewBootstrapToken {
        id: RowId::mint(now, chance()?),
        project: project.id,
        hash: token_hash(&token),
        labels: &request.labels,
        uses_max: uses,
        issued_by,
        expires_at: now.plus(Duration::from_secs(ttl)),
    };
    let mut tx = control.store.begin().await?;
    tx.insert_bootstrap_token(&new, now).await?;
    let entry = Entry::granted(issued_by, "token.issue", authz::project(project.id))
        .with(format!("bootstrap-token:{} for {uses} nodes", new.id));
    tx.append_audit(project.domain, &[entry], now).await?;
    tx.commit().await?;
    let (id, expires_at) = (new.id, new.expires_at);
    log::info!(token_id:% = id, uses; "Issued a bootstrap token for {uses} nodes");
    Ok(IssuedToken {
        id,
        token,
        project_id: project.id,
        labels: request.labels,
        uses,
        expires_at,
    })
}

/// Enrols a node. The same token with the same enrolment id is the same node, whose NSK is made anew: the answer that
/// carried the older one was lost, and nobody holds it.
pub(crate) async fn enroll(
    control: &Control,
    bearer: &str,
    request: &EnrollRequest,
    now: Timestamp,
) -> Result<EnrollResponse, EnrollError> {
    check_host(request)?;
    let said = labels_of_the_node(&request.labels)?;
    // Whoever shows what was never a token, or admits nobody any more, takes no turn at writing, for which nodes that report
    // wait too.
    let shown = token_hash(bearer);
    let (token, project) = known_token(control, bearer, shown).await?;
    control.enroll_rates.check(&token.id)?;
    let who = (&token, &project, &*request.hostname);
    // Read after the token, which was not used up before the node was there that it enrolled last.
    let before = control
        .store
        .enrolled_before(token.id, request.enrollment_id)
        .await?;
    if let Err(shut) = check_token(&token, before.as_ref(), now) {
        return Err(refuse(control, who, shut, now).await);
    }
    let nsk = TokenKind::Nsk.mint()?;
    let mut tx = control.store.begin().await?;
    // It may have come to its end meanwhile.
    let token = tx
        .bootstrap_token(shown)
        .await?
        .ok_or(EnrollError::TokenInvalid)?;
    let before = tx.enrolled_before(token.id, request.enrollment_id).await?;
    if let Err(shut) = check_token(&token, before.as_ref(), now) {
        drop(tx);
        return Err(refuse(control, who, shut, now).await);
    }
    let subject = subject_of(&token);
    let mut notices = Vec::new();
    let (node, name) = match before {
        Some(Enrolled { node, name, .. }) => {
            tx.replace_nsk(node, token_hash(&nsk)).await?;
            (node, name)
        }
        None => {
            let twins = tx
                .nodes_with_machine_id(project.domain, &request.machine_id)
                .await?;
            let made = admit(&mut tx, &token, &project, (request, &nsk), now).await?;
            if !twins.is_empty() {
                notices.push(format!(
                    "machine-id {} is also that of {}: this is a node of its own, but the machines look like clones",
                    request.machine_id,
                    twins.join(", ")
                ));
            }
            made
        }
    };
    let signers = control.signing.current();
    tx.note_signing_serial(node, signers.serial).await?;
    for (key, value) in said.iter().chain(&token.labels) {
        tx.set_label(node, key, value).await?;
    }
    let entry = Entry::granted(&subject, ENROLL, authz::resource(node)).with(&name);
    tx.append_audit(project.domain, &[entry], now).await?;
    tx.commit().await?;
    for notice in &notices {
        log::warn!(node_id:% = node; "{notice}");
    }
    log::info!(node_id:% = node; "Enrolled node {name}");
    Ok(EnrollResponse {
        node_id: node,
        name,
        domain_id: project.domain,
        project_id: project.id,
        nsk,
        signing_keys: signers.keys(),
        signing_serial: Some(signers.serial),
        ca_pem: control.ca_pem.clone(),
        notices,
    })
}

/// The token of that secret as it is now, and where it enrols.
async fn known_token(
    control: &Control,
    bearer: &str,
    shown: Digest,
) -> Result<(BootstrapToken, Project), EnrollError> {
    if !bearer.starts_with(TokenKind::Bootstrap.prefix()) {
        return Err(EnrollError::TokenInvalid);
    }
    let token = control.store.bootstrap_token_now(shown).await?;
    let token = token.ok_or(EnrollError::TokenInvalid)?;
    let project = control.store.project(token.project).await?;
    let project = project.ok_or(EnrollError::TokenInvalid)?;
    Ok((token, project))
}

fn subject_of(token: &BootstrapToken) -> String {
    format!("bootstrap-token:{}", token.id)
}

/// Whether the token still admits: one that is used up admits the nodes that it enrolled, again, unless they are out of service.
fn check_token(token: &BootstrapToken, before: Option<&Enrolled>, now: Timestamp) -> Result<(), Shut> {
    if let Some(at) = token.revoked_at {
        return Err((EnrollError::TokenRevoked(at), "bootstrap_token_revoked"));
    }
    if token.expires_at <= now {
        return Err((
            EnrollError::TokenExpired(token.expires_at),
            "bootstrap_token_expired",
        ));
    }
    match before {
        None if token.uses >= token.uses_max => {
            Err((EnrollError::TokenUsed(token.uses_max), "bootstrap_token_used"))
        }
        None => Ok(()),
        Some(before) => match before.decommissioned_at {
            None => Ok(()),
            Some(at) => {
                let name = before.name.clone();
                Err((EnrollError::Decommissioned { name, at }, "node_decommissioned"))
            }
        },
    }
}

/// Writes down whom a token does not admit, or counts it, past the bucket of the token.
async fn refuse(
    control: &Control,
    (token, project, hostname): (&BootstrapToken, &Project, &str),
    (refused, why): Shut,
    now: Timestamp,
) -> EnrollError {
    let (subject, resource) = (subject_of(token), authz::project(project.id));
    let who = Refused {
        subject: &subject,
        domain: project.domain,
        about: &resource,
    };
    let (relation, outcome) = (ENROLL, Outcome::PermissionDenied);
    match refusals::turn(control, who, Kind { relation, why }, outcome) {
        Turn::Counted => refused,
        Turn::Written => {
            let entry = Entry::new(&subject, relation, resource.clone(), outcome);
            let entry = entry.with(format!("{hostname}: {refused}"));
            match audit::record(control, project.domain, &[entry], now).await {
                Ok(()) => refused,
                Err(err) => err.into(),
            }
        }
    }
}

async fn admit(
    tx: &mut Tx,
    token: &BootstrapToken,
    project: &Project,
    (request, nsk): (&EnrollRequest, &str),
    now: Timestamp,
) -> Result<(NodeId, String), EnrollError> {
    tx.use_bootstrap_token(token.id).await?;
    let node = NodeId::mint(now, chance()?);
    let name = free_name(tx, project, &request.hostname).await?;
    tx.insert_node(
        &NewNode {
            id: node,
            domain: project.domain,
            project: project.id,
            name: &name,
            hostname: &request.hostname,
            machine_id: &request.machine_id,
            nsk_hash: token_hash(nsk),
            token: token.id,
            enrollment: request.enrollment_id,
        },
        now,
    )
    .await?;
    Ok((node, name))
}

/// A node is named by its hostname; the second of that name gets a number.
async fn free_name(tx: &mut Tx, project: &Project, hostname: &str) -> Result<String, EnrollError> {
    for n in 1..=NAME_TRIES_MAX {
        let name = if n == 1 {
            hostname.to_owned()
        } else {
            format!("{hostname}-{n}")
        };
        if !tx.node_name_taken(project.id, &name).await? {
            return Ok(name);
        }
    }
    Err(EnrollError::NameExhausted(hostname.to_owned()))
}

fn check_host(request: &EnrollRequest) -> Result<(), EnrollError> {
    let sound = |text: &str, max| (1..=max).contains(&text.len()) && !text.chars().any(char::is_control);
    if sound(&request.hostname, HOSTNAME_LEN_MAX) && sound(&request.machine_id, MACHINE_ID_LEN_MAX) {
        Ok(())
    } else {
        Err(EnrollError::BadHost)
    }
}

/// What a node says of itself is kept under its own prefix, whatever it claims.
pub(crate) fn labels_of_the_node(proposed: &Labels) -> Result<Labels, BadLabel> {
    if proposed.len() > LABELS_SAID_MAX {
        return Err(BadLabel::TooManySaid(proposed.len()));
    }
    proposed
        .iter()
        .map(|(key, value)| {
            let key = format!("{NODE_PREFIX}{key}");
            labels::check(&key, value)?;
            Ok((key, value.clone()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_cannot_name_itself_into_an_operators_label() {
        let proposed = labels::parse_list("os=debian,role=admin").unwrap();
        let kept = labels_of_the_node(&proposed).unwrap();
        assert_eq!(kept.keys().collect::<Vec<_>>(), ["node/os", "node/role"]);
    }
}
