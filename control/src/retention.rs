//! How long history is kept, and its end: settled executions with all that belongs to them, then the audit rows about
//! them. Nothing goes until a retention is set. A sweep: idempotent, in bounded batches, decided by the database, the
//! settings and the clock alone.
//!
//! Which goes first, the row or its object in the output store? A row that goes first leaves an object that nothing
//! names, should the power go between the two; an object that goes first leaves a row that promises an output which is not
//! there. So neither: the commit that removes the row notes the object as garbage, and the note goes once the store has
//! said that the object is gone. A store that is away, or a power cut at any point, only delays that.

use std::{collections::BTreeMap, time::Duration};

use muster_shared::{
    ids::{ActionName, DomainId},
    time::Timestamp,
};
use serde::Serialize;

use crate::{
    audit::{self, Entry},
    authz,
    control::Control,
    error_chain,
    outputs::OutputStore,
    store::{Settled, Store, StoreError},
};

/// How often it is looked for what may go.
const PRUNE_EVERY: Duration = Duration::from_hours(1);
/// The pause between two batches, in which others write.
const BATCH_PAUSE: Duration = Duration::from_millis(20);
/// How many objects are removed between two commits.
const GARBAGE_BATCH: u32 = 100;
/// After so many failures in one round the output store is left alone until the next.
const GARBAGE_FAILURES_MAX: u32 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keep {
    Forever,
    For(Duration),
}

/// What one table of the settings says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Rules {
    pub(crate) executions: Option<Keep>,
    pub(crate) actions: BTreeMap<ActionName, Keep>,
    pub(crate) audit: Option<Keep>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Retention {
    pub(crate) general: Rules,
    /// What stands above it for one domain.
    pub(crate) domains: BTreeMap<DomainId, Rules>,
    /// How many invocations, or audit rows, one commit removes.
    pub(crate) batch: u32,
}

impl Retention {
    /// A domain's own settings stand above the general ones, and in each the action's above that of all actions.
    pub(crate) fn of_action(&self, domain: DomainId, action: &ActionName) -> Keep {
        let said = |rules: &Rules| rules.actions.get(action).copied().or(rules.executions);
        let own = self.domains.get(&domain).and_then(said);
        own.or_else(|| said(&self.general)).unwrap_or(Keep::Forever)
    }

    pub(crate) fn of_audit(&self, domain: DomainId) -> Keep {
        let own = self.domains.get(&domain).and_then(|rules| rules.audit);
        own.or(self.general.audit).unwrap_or(Keep::Forever)
    }
}

/// What may go, of one domain and action, or of the audit rows of one domain.
#[derive(Debug, Serialize)]
pub(crate) struct Due {
    pub(crate) domain_id: DomainId,
    /// `None` for audit rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) action: Option<ActionName>,
    pub(crate) before: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) executions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) invocations: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) audit_rows: Option<u64>,
}

/// What a prune would remove now. Changes nothing.
pub(crate) async fn due(
    store: &Store,
    retention: &Retention,
    now: Timestamp,
) -> Result<Vec<Due>, StoreError> {
    let mut all = Vec::new();
    for domain in store.all_domains().await? {
        for action in store.settled_actions(domain).await? {
            let Keep::For(keep) = retention.of_action(domain, &action) else {
                continue;
            };
            let settled = Settled::new(domain, &action, keep, now);
            let (executions, invocations) = store.count_settled(&settled).await?;
            let before = settled.before;
            all.push(Due {
                domain_id: domain,
                action: Some(action),
                before,
                executions: Some(executions),
                invocations: Some(invocations),
                audit_rows: None,
            });
        }
        if let Keep::For(keep) = retention.of_audit(domain) {
            let before = audit_before(store, domain, keep, now).await?;
            all.push(Due {
                domain_id: domain,
                action: None,
                before,
                executions: None,
                invocations: None,
                audit_rows: Some(store.count_old_audit(domain, before).await?),
            });
        }
    }
    Ok(all)
}

/// What one round removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Pruned {
    pub(crate) executions: u64,
    pub(crate) invocations: u64,
    pub(crate) objects: u64,
    pub(crate) audit_rows: u64,
}

/// Prunes until the service stops.
pub(crate) async fn run(control: &Control, retention: &Retention) {
    loop {
        let go_on = || !control.stop.is_cancelled();
        match prune(
            &control.store,
            &control.outputs,
            retention,
            Timestamp::now(),
            go_on,
        )
        .await
        {
            Ok(pruned) if pruned != Pruned::default() => {
                let Pruned {
                    executions,
                    invocations,
                    objects,
                    audit_rows,
                } = pruned;
                log::info!(executions, invocations, objects, audit_rows;
                    "Pruned {executions} executions, {objects} outputs and {audit_rows} audit rows whose retention is over");
            }
            Ok(_) => {}
            Err(err) => log::error!("History could not be pruned: {}", error_chain(&err)),
        }
        if control.stopped_within(PRUNE_EVERY).await {
            return;
        }
    }
}

/// One round: everything whose retention is over, while `go_on` says so. What fails keeps nothing else from its turn, and
/// fails the round in the end.
pub(crate) async fn prune(
    store: &Store,
    outputs: &OutputStore,
    retention: &Retention,
    now: Timestamp,
    go_on: impl Fn() -> bool,
) -> Result<Pruned, StoreError> {
    let mut pruned = Pruned::default();
    let mut failed = None;
    let domains = store.all_domains().await?;
    for domain in &domains {
        let done = prune_domain(
            store,
            outputs.bucket(),
            (retention, *domain),
            now,
            &go_on,
            &mut pruned,
        )
        .await;
        note_failure(done, &mut failed);
    }
    match collect_garbage(store, outputs, now, &go_on).await {
        Ok(objects) => pruned.objects = objects,
        Err(err) => note_failure(Err(err), &mut failed),
    }
    // Evidence goes last.
    for domain in &domains {
        let Keep::For(keep) = retention.of_audit(*domain) else {
            continue;
        };
        let done = prune_chain(store, (*domain, keep), retention.batch, now, &go_on, &mut pruned).await;
        note_failure(done, &mut failed);
    }
    if pruned != Pruned::default() {
        while go_on() && store.give_back_pages().await? {
            tokio::time::sleep(BATCH_PAUSE).await;
        }
    }
    match failed {
        None => Ok(pruned),
        Some(err) => Err(err),
    }
}

/// The first failure is the answer of the round; each is in the log.
fn note_failure(done: Result<(), StoreError>, failed: &mut Option<StoreError>) {
    if let Err(err) = done {
        log::error!("A part of history could not be pruned: {}", error_chain(&err));
        failed.get_or_insert(err);
    }
}

async fn prune_domain(
    store: &Store,
    bucket: &str,
    (retention, domain): (&Retention, DomainId),
    now: Timestamp,
    go_on: &impl Fn() -> bool,
    pruned: &mut Pruned,
) -> Result<(), StoreError> {
    let mut failed = None;
    for action in store.settled_actions(domain).await? {
        let Keep::For(keep) = retention.of_action(domain, &action) else {
            continue;
        };
        let settled = Settled::new(domain, &action, keep, now);
        while go_on() {
            match prune_batch(store, bucket, &settled, retention.batch, now).await {
                Ok(None) => break,
                Ok(Some((executions, invocations))) => {
                    pruned.executions += executions;
                    pruned.invocations += invocations;
                }
                Err(err) => {
                    note_failure(Err(err), &mut failed);
                    break;
                }
            }
            tokio::time::sleep(BATCH_PAUSE).await;
        }
    }
    failed.map_or(Ok(()), Err)
}

async fn prune_chain(
    store: &Store,
    (domain, keep): (DomainId, Duration),
    batch: u32,
    now: Timestamp,
    go_on: &impl Fn() -> bool,
    pruned: &mut Pruned,
) -> Result<(), StoreError> {
    let before = audit_before(store, domain, keep, now).await?;
    while go_on() {
        let rows = prune_audit(store, domain, before, batch, now).await?;
        pruned.audit_rows += rows;
        if rows < u64::from(batch) {
            break;
        }
        tokio::time::sleep(BATCH_PAUSE).await;
    }
    Ok(())
}

/// Up to when audit rows go: none that was written since the oldest execution was dispatched that is still here, or
/// it would be there without its evidence.
async fn audit_before(
    store: &Store,
    domain: DomainId,
    keep: Duration,
    now: Timestamp,
) -> Result<Timestamp, StoreError> {
    let over = now.minus(keep);
    let oldest = store.oldest_execution(domain).await?;
    Ok(oldest.map_or(over, |oldest| over.min(oldest.minus(Duration::from_millis(1)))))
}

/// One batch; `None` when nothing is left. An execution goes as a whole: half of one would be false history. So a batch may be larger than its limit by one
/// execution.
async fn prune_batch(
    store: &Store,
    bucket: &str,
    settled: &Settled<'_>,
    batch: u32,
    now: Timestamp,
) -> Result<Option<(u64, u64)>, StoreError> {
    let (mut room, mut due) = (u64::from(batch), Vec::new());
    for id in store.settled(settled).await? {
        if room == 0 {
            break;
        }
        room -= store.count_targets(id, room).await?;
        due.push(id);
    }
    if due.is_empty() {
        return Ok(None);
    }
    let mut tx = store.begin().await?;
    let (executions, invocations) = tx.prune_executions(&due, bucket, now).await?;
    if executions == 0 {
        // Somebody else prunes as well, and was here first.
        return Ok(Some((0, 0)));
    }
    let entry = Entry::granted(
        audit::SYSTEM,
        "retention.executions",
        authz::domain(settled.domain),
    )
    .with(format!(
        "{executions} of {} with {invocations} invocations, settled by {}",
        settled.action, settled.before
    ));
    tx.append_audit(settled.domain, &[entry], now).await?;
    tx.commit().await?;
    Ok(Some((executions, invocations)))
}

/// The oldest rows of one chain. The commit that removes them appends a row that says where the chain begins from now on.
async fn prune_audit(
    store: &Store,
    domain: DomainId,
    before: Timestamp,
    batch: u32,
    now: Timestamp,
) -> Result<u64, StoreError> {
    let mut tx = store.begin().await?;
    let Some((rows, last)) = tx.prune_audit(domain, before, batch).await? else {
        return Ok(0);
    };
    let entry = Entry::granted(
        audit::SYSTEM,
        muster_shared::audit::PRUNE_RELATION,
        authz::domain(domain),
    )
    .with(last.to_string());
    tx.append_audit(domain, &[entry], now).await?;
    tx.commit().await?;
    Ok(rows)
}

/// Removes objects that no row names any more. What fails is tried again in the next round.
async fn collect_garbage(
    store: &Store,
    outputs: &OutputStore,
    now: Timestamp,
    go_on: &impl Fn() -> bool,
) -> Result<u64, StoreError> {
    let (mut gone, mut failures, mut after) = (0, 0, String::new());
    while go_on() {
        let keys = store
            .garbage(outputs.bucket(), now, &after, GARBAGE_BATCH)
            .await?;
        let Some(last) = keys.last() else { break };
        after.clone_from(last);
        let mut removed = Vec::new();
        for key in keys {
            match outputs.delete(&key).await {
                Ok(()) => removed.push(key),
                Err(err) => {
                    failures += 1;
                    log::warn!(key; "The output {key} could not be removed, and will be tried again: {}", error_chain(&err));
                }
            }
            if failures >= GARBAGE_FAILURES_MAX {
                break;
            }
        }
        gone += removed.len() as u64;
        let mut tx = store.begin().await?;
        tx.forget_garbage(outputs.bucket(), &removed).await?;
        tx.commit().await?;
        if failures >= GARBAGE_FAILURES_MAX {
            break;
        }
    }
    Ok(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_particular_setting_decides() {
        let day = |days: u64| Keep::For(Duration::from_hours(24 * days));
        let domain = |n| DomainId::mint(Timestamp::from_millis(0), [n; 10]);
        let name = |raw: &str| raw.parse::<ActionName>().unwrap();
        let (own, other) = (domain(1), domain(2));
        let mut retention = Retention {
            general: Rules::default(),
            domains: BTreeMap::new(),
            batch: 1,
        };
        assert_eq!(retention.of_action(own, &name("ping")), Keep::Forever);
        assert_eq!(retention.of_audit(own), Keep::Forever);
        retention.general = Rules {
            executions: Some(day(90)),
            actions: BTreeMap::from([(name("ping"), day(7)), (name("deploy"), Keep::Forever)]),
            audit: Some(day(400)),
        };
        assert_eq!(retention.of_action(own, &name("ping")), day(7));
        assert_eq!(retention.of_action(own, &name("backup")), day(90));
        assert_eq!(retention.of_action(own, &name("deploy")), Keep::Forever);
        retention.domains.insert(
            own,
            Rules {
                executions: Some(day(30)),
                actions: BTreeMap::from([(name("backup"), day(3))]),
                audit: None,
            },
        );
        assert_eq!(retention.of_action(own, &name("backup")), day(3));
        assert_eq!(retention.of_action(own, &name("ping")), day(30));
        assert_eq!(retention.of_action(other, &name("ping")), day(7));
        assert_eq!(retention.of_audit(own), day(400));
    }
}
