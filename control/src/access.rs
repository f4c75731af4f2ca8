//! Operator tokens and relation tuples: made, rotated, revoked and asked about. Nothing here may leave a domain without
//! a token that operates it, because only such a token could make another.

use std::time::Duration;

use muster_shared::{
    access::{
        BootstrapTokenState, CheckRequest, CheckResponse, CreateOperatorTokenRequest, Decision,
        OPERATOR_TOKEN_NAME_LEN_MAX as NAME_LEN_MAX, OPERATOR_TOKEN_TTL_SECONDS_MAX as TTL_SECONDS_MAX,
        OPERATOR_TOKEN_TTL_SECONDS_MIN as TTL_SECONDS_MIN, OperatorToken, OperatorTokenSecret,
        ROTATION_OVERLAP_SECONDS_MAX as OVERLAP_SECONDS_MAX, Reason, RelationTuple,
        RelationTupleCreateRequest,
    },
    ids::{DomainId, RowId},
    time::Timestamp,
};

use crate::{
    audit::Entry,
    authz::{self, BadShape, BadTuple, Grants, Home, Resource, Subject, Tuples},
    control::Control,
    keys::{TokenKind, chance, token_hash},
    store::{Project, StoreError, Tx},
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum AccessError {
    #[error("name is {0:?}; it must have 1 to {NAME_LEN_MAX} of a-z A-Z 0-9 . _ -")]
    BadName(String),
    #[error("ttl_seconds is {0}; it must be from {TTL_SECONDS_MIN} to {TTL_SECONDS_MAX}, or left out")]
    BadTtl(u64),
    #[error("overlap_seconds is {0}; it may be at most {OVERLAP_SECONDS_MAX} (7 days)")]
    BadOverlap(u64),
    #[error("another operator token of the domain is called {0:?}; revoke it, or choose another name")]
    NameTaken(String),
    #[error("the token is revoked or expired; issue another")]
    NotLive,
    #[error("then no token would hold the relation operator on the domain; give it to another first")]
    LastOperator,
    #[error(
        "then no token would hold the relation operator on the domain: exclude it after giving that to another"
    )]
    ExcludesLastOperator,
    #[error("{0}")]
    Shape(#[from] BadShape),
    #[error("{0}")]
    Tuple(#[from] BadTuple),
    #[error("caveats are not supported: a tuple with one would grant more than it says")]
    Caveat,
    #[error("there is no {0} in this project or its domain")]
    NoSuchResource(String),
    #[error("{0} concerns the whole domain: this needs the relation operator on it")]
    OfTheDomain(String),
    #[error("the tokens and tuples could not be stored")]
    Store(#[from] StoreError),
    #[error("the system gave no random bytes")]
    Chance(#[from] std::io::Error),
}

/// Issues an operator token, which may do nothing until it is granted something.
pub(crate) async fn issue(
    control: &Control,
    domain: DomainId,
    by: &str,
    request: CreateOperatorTokenRequest,
    now: Timestamp,
) -> Result<OperatorTokenSecret, AccessError> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    let name = request.name;
    if !(1..=NAME_LEN_MAX).contains(&name.len()) || !name.bytes().all(plain) {
        return Err(AccessError::BadName(name));
    }
    let expires_at = match request.ttl_seconds {
        None => None,
        Some(ttl) if (TTL_SECONDS_MIN..=TTL_SECONDS_MAX).contains(&ttl) => {
            Some(now.plus(Duration::from_secs(ttl)))
        }
        Some(ttl) => return Err(AccessError::BadTtl(ttl)),
    };
    let secret = TokenKind::Operator.mint()?;
    let about = OperatorToken {
        id: RowId::mint(now, chance()?),
        name,
        domain_id: domain,
        created_at: now,
        created_by: by.to_owned(),
        expires_at,
        revoked_at: None,
        rotated_at: None,
        previous_valid_until: None,
    };
    let mut tx = control.store.begin().await?;
    if !tx.insert_operator_token(&about, token_hash(&secret)).await? {
        return Err(AccessError::NameTaken(about.name));
    }
    let entry = Entry::granted(by, "token.issue", token_resource(about.id)).with(&about.name);
    tx.append_audit(domain, &[entry], now).await?;
    tx.commit().await?;
    log::info!(token_id:% = about.id, by; "Issued operator token {}", about.name);
    Ok(OperatorTokenSecret { about, token: secret })
}

fn token_resource(id: RowId) -> String {
    format!("token:{id}")
}

/// Revokes a token for good. Revoking it again changes nothing.
pub(crate) async fn revoke(
    control: &Control,
    token: &OperatorToken,
    by: &str,
    now: Timestamp,
) -> Result<(), AccessError> {
    let mut tx = control.store.begin().await?;
    let operated = is_operated(&mut tx, token.domain_id, now).await?;
    if !tx.revoke_operator_token(token.id, now).await? {
        return Ok(());
    }
    keep_operated(&mut tx, token.domain_id, operated, now).await?;
    let entry = Entry::granted(by, "token.revoke", token_resource(token.id)).with(&token.name);
    tx.append_audit(token.domain_id, &[entry], now).await?;
    tx.commit().await?;
    log::info!(token_id:% = token.id, by; "Revoked operator token {}", token.name);
    Ok(())
}

/// Gives a token a new secret. Its id, and with it all that it was granted, stays.
pub(crate) async fn rotate(
    control: &Control,
    token: &OperatorToken,
    by: &str,
    overlap_seconds: u64,
    now: Timestamp,
) -> Result<OperatorTokenSecret, AccessError> {
    if overlap_seconds > OVERLAP_SECONDS_MAX {
        return Err(AccessError::BadOverlap(overlap_seconds));
    }
    let until = now.plus(Duration::from_secs(overlap_seconds));
    let secret = TokenKind::Operator.mint()?;
    let mut tx = control.store.begin().await?;
    if !tx
        .rotate_operator_token(token.id, token_hash(&secret), until, now)
        .await?
    {
        return Err(AccessError::NotLive);
    }
    let entry = Entry::granted(by, "token.rotate", token_resource(token.id))
        .with(format!("{}, overlap {overlap_seconds} s", token.name));
    tx.append_audit(token.domain_id, &[entry], now).await?;
    tx.commit().await?;
    log::info!(token_id:% = token.id, by; "Rotated operator token {}", token.name);
    let about = OperatorToken {
        rotated_at: Some(now),
        previous_valid_until: Some(until),
        ..token.clone()
    };
    Ok(OperatorTokenSecret { about, token: secret })
}

/// Whether any token that holds now operates the domain, by itself or through a group.
async fn is_operated(tx: &mut Tx, domain: DomainId, now: Timestamp) -> Result<bool, StoreError> {
    let tuples = tx.tuples_of(domain).await?;
    let tuples = Tuples::new(&tuples);
    let live = tx.live_operator_tokens(now).await?;
    Ok(live.into_iter().any(|token| {
        tuples
            .grants_of([&*token_resource(token)])
            .may_operate_domain(domain)
    }))
}

/// Refuses what takes the last operator away. A domain that had none before is no worse off.
async fn keep_operated(
    tx: &mut Tx,
    domain: DomainId,
    before: bool,
    now: Timestamp,
) -> Result<(), AccessError> {
    if before && !is_operated(tx, domain, now).await? {
        return Err(AccessError::LastOperator);
    }
    Ok(())
}

/// Where the resource stands, if there is one such.
async fn home(control: &Control, resource: &Resource, domain: DomainId) -> Result<Option<Home>, StoreError> {
    Ok(match resource {
        Resource::Domain(id) => {
            let known = control.store.all_domains().await?.contains(id);
            known.then_some(Home::Domain(*id))
        }
        Resource::Project(id) => control
            .store
            .project(*id)
            .await?
            .map(|project| Home::Project(project.domain, project.id)),
        Resource::Node(id) => control
            .store
            .home_of(*id)
            .await?
            .map(|(domain, project)| Home::Node(domain, project, *id)),
        Resource::Group(name) => Some(Home::Group(domain, name.clone())),
    })
}

/// Writes a tuple of the project, one of its nodes or, by an operator of the domain, of that. A tuple that stands
/// already is answered as it is.
pub(crate) async fn grant(
    control: &Control,
    project: &Project,
    (by, grants): (&str, &Grants),
    request: &RelationTupleCreateRequest,
    now: Timestamp,
) -> Result<RelationTuple, AccessError> {
    if request.caveat_name.is_some() || !request.caveat_context.is_empty() {
        return Err(AccessError::Caveat);
    }
    let subject: Subject = request.subject.parse()?;
    let resource: Resource = request.resource.parse()?;
    authz::check_relation(&request.relation, &resource)?;
    let missing = || AccessError::NoSuchResource(request.resource.clone());
    let home = home(control, &resource, project.domain)
        .await?
        .ok_or_else(missing)?;
    let of_project = match home {
        Home::Project(_, id) | Home::Node(_, id, _) if id == project.id => Some(id),
        Home::Domain(id) | Home::Group(id, _) if id == project.domain => None,
        Home::Project(..) | Home::Node(..) | Home::Domain(_) | Home::Group(..) => return Err(missing()),
    };
    if of_project.is_none() && !grants.may_operate_domain(project.domain) {
        return Err(AccessError::OfTheDomain(request.resource.clone()));
    }
    let (subject, resource) = (subject.to_string(), resource.to_string());
    let mut tx = control.store.begin().await?;
    let takes_away = request.relation == authz::EXCLUDED;
    let operated = takes_away && is_operated(&mut tx, project.domain, now).await?;
    let (tuple, new) = tx
        .insert_relation(
            RowId::mint(now, chance()?),
            (project.domain, of_project),
            (&subject, &request.relation, &resource),
            now,
        )
        .await?;
    if !new {
        return Ok(tuple);
    }
    if request.relation == authz::MEMBER {
        authz::check_nesting(&tx.tuples_of(project.domain).await?, &resource)?;
    }
    if operated && !is_operated(&mut tx, project.domain, now).await? {
        return Err(AccessError::ExcludesLastOperator);
    }
    let entry = Entry::granted(by, "grant.create", resource).with(written(&tuple));
    tx.append_audit(project.domain, &[entry], now).await?;
    tx.commit().await?;
    log::info!(by; "Granted {}", written(&tuple));
    Ok(tuple)
}

fn written(tuple: &RelationTuple) -> String {
    authz::notation(&tuple.resource, &tuple.relation, &tuple.subject)
}

/// Deletes a tuple that the caller might have written. `None` when there is no such.
pub(crate) async fn ungrant(
    control: &Control,
    project: &Project,
    (by, grants): (&str, &Grants),
    id: RowId,
    now: Timestamp,
) -> Result<Option<RelationTuple>, AccessError> {
    let of_domain_too = grants.may_operate_domain(project.domain);
    let mut tx = control.store.begin().await?;
    let operated = is_operated(&mut tx, project.domain, now).await?;
    let Some(tuple) = tx
        .delete_relation(id, (project.domain, project.id), of_domain_too)
        .await?
    else {
        return Ok(None);
    };
    keep_operated(&mut tx, project.domain, operated, now).await?;
    let entry = Entry::granted(by, "grant.delete", tuple.resource.clone()).with(written(&tuple));
    tx.append_audit(project.domain, &[entry], now).await?;
    tx.commit().await?;
    log::info!(by; "Took away {}", written(&tuple));
    Ok(Some(tuple))
}

/// Whether a subject may what is asked. A caller may ask about itself everywhere, and about anybody where it is an
/// operator; elsewhere the answer is the same as for what does not exist.
pub(crate) async fn check(
    control: &Control,
    (by, own): (&str, &Grants),
    request: &CheckRequest,
    now: Timestamp,
) -> Result<CheckResponse, AccessError> {
    let subject: Subject = request.subject.parse()?;
    let resource: Resource = request.resource.parse()?;
    authz::check_question(&request.relation, &resource)?;
    let answer = |decision, reason, relation_path| -> Result<CheckResponse, AccessError> {
        Ok(CheckResponse {
            decision,
            reason,
            relation_path,
            correlation_id: RowId::mint(now, chance()?),
        })
    };
    let out_of_scope = || answer(Decision::Denied, Reason::OutOfScope, Vec::new());
    // A group is asked about in no domain in particular, and its members are nobody's business elsewhere.
    let domain = match &resource {
        Resource::Group(_) => operated_domain(control, own).await?,
        Resource::Domain(_) | Resource::Project(_) | Resource::Node(_) => None,
    };
    let Some(home) = home(
        control,
        &resource,
        domain.unwrap_or(DomainId::from(uuid::Uuid::nil())),
    )
    .await?
    else {
        return out_of_scope();
    };
    let may_ask = match &home {
        Home::Domain(domain) | Home::Group(domain, _) => own.may_operate_domain(*domain),
        Home::Project(domain, project) | Home::Node(domain, project, _) => own.may_operate(*domain, *project),
    };
    let subject = subject.to_string();
    if !may_ask && subject != by {
        return out_of_scope();
    }
    let grants = if subject == by {
        own.clone()
    } else {
        Grants::of(
            &subject,
            &control.store.tuples_about(std::slice::from_ref(&subject)).await?,
        )
    };
    let (allowed, path) = grants.decide(&request.relation, &home);
    if allowed {
        answer(Decision::Allowed, Reason::Granted, path)
    } else {
        answer(Decision::Denied, Reason::InsufficientRelation, path)
    }
}

/// The domain whose groups the caller means: the first that it operates.
async fn operated_domain(control: &Control, own: &Grants) -> Result<Option<DomainId>, StoreError> {
    let domains = control.store.all_domains().await?;
    Ok(domains.into_iter().find(|domain| own.may_operate_domain(*domain)))
}

/// Revokes a bootstrap token of a project. `None` when there is no such.
pub(crate) async fn revoke_bootstrap(
    control: &Control,
    project: &Project,
    by: &str,
    id: RowId,
    now: Timestamp,
) -> Result<Option<BootstrapTokenState>, AccessError> {
    let mut tx = control.store.begin().await?;
    let Some(revoked) = tx.revoke_bootstrap_token(project.id, id, now).await? else {
        return Ok(None);
    };
    let entry =
        Entry::granted(by, "token.revoke", authz::project(project.id)).with(format!("bootstrap-token:{id}"));
    tx.append_audit(project.domain, &[entry], now).await?;
    tx.commit().await?;
    log::info!(token_id:% = id, by; "Revoked a bootstrap token");
    Ok(Some(revoked))
}
