//! What is asked of what control works with: the database, its keys and clock, the output store, the issuer.

use std::time::Duration;

use muster_shared::{
    doctor::{CheckVerdict, Finding},
    time::Timestamp,
};

use crate::{
    audit,
    config::Config,
    error_chain,
    oidc::Oidc,
    outputs::Well,
    restored::Restored,
    serve,
    signing::{self, Signers},
    store::{Store, StoreError, known_schema},
};

/// A larger database is not read from end to end here: that takes minutes, and `backup` does it anyway.
const READ_WHOLE_BYTES_MAX: u64 = 4 << 30;
/// Nodes that were heard of within this time have a clock worth comparing.
const HEARD_WITHIN: Duration = Duration::from_secs(600);
/// So many clocks that agree are better than one.
const CLOCKS_MIN: usize = 3;
const SKEW_MS_MAX: u64 = 5000;

pub(super) async fn database(config: &Config, now: Timestamp) -> Vec<Finding> {
    let check = "database";
    let shown = config.database.shown();
    if config.database.is_missing() {
        let remedy = format!(
            "muster-control init --data-dir {dir} for a new control, muster-control restore for one that was",
            dir = config.data.path().display()
        );
        return vec![Finding::fail(check, format!("{shown} is not there"), remedy)];
    }
    let unreadable = |err: StoreError| {
        Finding::fail(
            check,
            format!("{shown}: {}", error_chain(&err)),
            "run this as root or as control's user, look whether the server of a database_url is there; restore a damaged one from a backup",
        )
    };
    let store = match Store::open_to_read(&config.database).await {
        Ok(store) => store,
        Err(err) => return vec![unreadable(err)],
    };
    let findings = async {
        let mut findings = vec![schema(&store).await?];
        if findings
            .iter()
            .all(|finding| finding.verdict != CheckVerdict::Fail)
        {
            // Of a database service nobody counts them here.
            let bytes = std::fs::metadata(config.data.database()).map_or(0, |about| about.len());
            findings.extend(whole(&store, bytes).await?);
            findings.extend(keys(config, &store).await?);
            findings.push(clock(&store, now).await?);
            findings.extend(restore(config, &store).await?);
        }
        Ok::<_, StoreError>(findings)
    };
    let findings = findings.await.unwrap_or_else(|err| vec![unreadable(err)]);
    store.close().await;
    findings
}

async fn schema(store: &Store) -> Result<Finding, StoreError> {
    let check = "database";
    let (has, known) = (store.schema_version().await?, known_schema());
    Ok(match has.cmp(&known) {
        std::cmp::Ordering::Equal => Finding::ok(check, format!("answers, and has schema {has}")),
        std::cmp::Ordering::Less => Finding::warn(
            check,
            format!("has schema {has}, and this release has {known}"),
            "the next start of serve brings it up to date; take a backup before",
        ),
        std::cmp::Ordering::Greater => Finding::fail(
            check,
            format!("has schema {has}, and this release knows {known}"),
            "use the newer release; migrations only go forward",
        ),
    })
}

async fn whole(store: &Store, bytes: u64) -> Result<Vec<Finding>, StoreError> {
    let check = "database";
    if bytes > READ_WHOLE_BYTES_MAX {
        let text = format!(
            "has {} MiB and was not read from end to end; backup does that",
            bytes >> 20
        );
        return Ok(vec![Finding::skip(check, text)]);
    }
    let damage = store.damage().await?;
    if !damage.is_empty() {
        return Ok(vec![Finding::fail(
            check,
            format!("is damaged: {}", damage.join("; ")),
            "restore it from a backup: muster-control restore",
        )]);
    }
    let mut chains = 0;
    for domain in store.all_domains().await? {
        if let Err(err) = audit::verify(store, domain).await {
            return Ok(vec![Finding::fail(
                "audit",
                error_chain(&err),
                "somebody changed the audit trail, or the file is damaged: compare it with a backup",
            )]);
        }
        chains += 1;
    }
    Ok(vec![Finding::ok(
        check,
        format!(
            "{} MiB, whole; audit chains that hold: {chains}",
            bytes.div_ceil(1 << 20)
        ),
    )])
}

async fn keys(config: &Config, store: &Store) -> Result<Vec<Finding>, StoreError> {
    let check = "signing keys";
    let keys = store.signing_keys().await?;
    if let Err(err) = Signers::load(store, &config.data).await {
        return Ok(vec![Finding::fail(
            check,
            error_chain(&err),
            "restore the file from a backup; see docs/keys.md",
        )]);
    }
    if let Err(err) = config.data.server_key() {
        return Ok(vec![Finding::fail(
            check,
            error_chain(&err),
            "restore the file from a backup: nothing else opens what is under way",
        )]);
    }
    let serial = signing::serial(&keys);
    let ahead = store.nodes_ahead_of_keys(serial).await?;
    if !ahead.is_empty() {
        return Ok(vec![Finding::fail(
            check,
            format!(
                "{} nodes know a later set of keys than this control, which was restored from before a change: {}",
                ahead.len(),
                signing::named(&ahead)
            ),
            "put the later key files and rows back from a later backup, or enrol those nodes anew that refuse with retired_key",
        )]);
    }
    let live = keys.iter().filter(|key| key.retired_at.is_none()).count();
    let behind = store.nodes_without_keys(serial).await?;
    Ok(vec![match &behind[..] {
        [] => Finding::ok(check, format!("{live} sign, and every node has confirmed them")),
        behind => Finding::ok(
            check,
            format!(
                "{live} sign; not confirmed by {}: {}",
                behind.len(),
                signing::named(behind)
            ),
        ),
    }])
}

/// Nobody can ask for the true time here; what was written before, and what nodes say, must not contradict it.
async fn clock(store: &Store, now: Timestamp) -> Result<Finding, StoreError> {
    let check = "clock";
    let remedy = "set this machine's clock, and see that it is synchronised: timedatectl";
    if let Some(newest) = store.newest_audit_row().await?.filter(|newest| *newest > now) {
        let ahead = now.until(newest);
        if ahead > Duration::from_millis(SKEW_MS_MAX) {
            let text = format!("is {} s behind the last audit row, of {newest}", ahead.as_secs());
            return Ok(Finding::fail(check, text, remedy));
        }
    }
    let skews = store.clock_skews(now.minus(HEARD_WITHIN)).await?;
    let median = skews.get(skews.len() / 2).copied().unwrap_or_default();
    Ok(
        if skews.len() >= CLOCKS_MIN && median.unsigned_abs() > SKEW_MS_MAX {
            let text = format!(
                "{} nodes agree that it is off by {} s",
                skews.len(),
                median / 1000
            );
            Finding::warn(check, text, remedy)
        } else {
            Finding::ok(
                check,
                format!("{now}; nothing contradicts it (nodes compared: {})", skews.len()),
            )
        },
    )
}

async fn restore(config: &Config, store: &Store) -> Result<Option<Finding>, StoreError> {
    let check = "restore";
    let mark = match Restored::read(&config.data) {
        Ok(None) => return Ok(None),
        Ok(Some(mark)) => mark,
        Err(err) => {
            let remedy = "mend or remove the file; without it nodes are not asked what was forgotten";
            return Ok(Some(Finding::fail(check, error_chain(&err), remedy)));
        }
    };
    let text = format!(
        "this control was restored at {} from a backup of {}",
        mark.restored_at, mark.taken_at
    );
    let silent = store
        .nodes_silent_since(mark.served_at.unwrap_or(mark.restored_at))
        .await?;
    Ok(Some(match &silent[..] {
        [] => Finding::ok(check, format!("{text}; every node has been heard of since")),
        silent => Finding::warn(
            check,
            format!(
                "{text}; {} nodes have not been heard of since: {}",
                silent.len(),
                signing::named(silent)
            ),
            "those whose keys are newer than the backup have to be enrolled anew: see musterd status there",
        ),
    }))
}

pub(super) async fn outputs(config: &Config, now: Timestamp) -> Vec<Finding> {
    let check = "output store";
    let key = match config.data.server_key() {
        Ok(key) => key,
        Err(err) => return vec![Finding::skip(check, format!("was not looked at: {err}"))],
    };
    let store = match serve::open_outputs(config, &key) {
        Ok(store) => store,
        Err(err) => {
            let remedy = "see output.s3 in control.toml";
            return vec![Finding::fail(check, error_chain(&err), remedy)];
        }
    };
    let probed = store.probe(now).await;
    probed
        .into_iter()
        .map(|probed| {
            let verdict = match probed.well {
                Well::Yes => CheckVerdict::Ok,
                Well::Hardly => CheckVerdict::Warn,
                Well::No => CheckVerdict::Fail,
            };
            Finding::of(check, verdict, probed.finding, probed.remedy)
        })
        .collect()
}

pub(super) async fn issuer(config: &Config) -> Finding {
    let check = "OIDC issuer";
    let Some(settings) = config.oidc.clone() else {
        return Finding::skip(check, "none is set up");
    };
    let remedy =
        "see oidc in control.toml, the network and the issuer; until then its tokens are answered 503";
    let oidc = match Oidc::new(settings) {
        Ok(oidc) => oidc,
        Err(err) => return Finding::fail(check, error_chain(&err), remedy),
    };
    match oidc.probe().await {
        Ok(0) => Finding::fail(check, "answers, and publishes no key that can sign", remedy),
        Ok(keys) => Finding::ok(check, format!("answers; {keys} of its keys can sign")),
        Err(err) => Finding::fail(check, error_chain(&err), remedy),
    }
}
