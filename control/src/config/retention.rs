//! `[retention]`: for how long history is kept, as it may be said.

use std::{collections::BTreeMap, time::Duration};

use muster_shared::{
    ids::{ActionName, DomainId},
    time::parse_duration,
};
use serde::Deserialize;

use super::{ConfigError, within};
use crate::retention::{Keep, Retention, Rules};

/// Shorter would be a mistake more often than a wish.
const RETENTION_MIN: Duration = Duration::from_hours(1);
const RETENTION_MAX: Duration = Duration::from_hours(24 * 36_500);

/// `[retention]`, and `[retention.domains.ID]` with the same but for the batch.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRetention {
    batch: Option<u64>,
    executions: Option<String>,
    audit: Option<String>,
    #[serde(default)]
    actions: BTreeMap<String, String>,
    #[serde(default)]
    domains: BTreeMap<String, RawRules>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRules {
    executions: Option<String>,
    audit: Option<String>,
    #[serde(default)]
    actions: BTreeMap<String, String>,
}

impl RawRetention {
    pub(super) fn check(self) -> Result<Retention, ConfigError> {
        let batch = within("retention.batch", self.batch, 1000, 1, 100_000)?;
        let general = RawRules {
            executions: self.executions,
            audit: self.audit,
            actions: self.actions,
        };
        let mut domains = BTreeMap::new();
        for (raw, rules) in self.domains {
            let scope = format!("retention.domains.{raw}");
            let id: DomainId = raw.parse().map_err(|_| ConfigError::Retention {
                name: "retention.domains".to_owned(),
                value: raw,
                why: "it must be the id of a domain".to_owned(),
            })?;
            domains.insert(id, rules.check(&scope)?);
        }
        let retention = Retention {
            general: general.check("retention")?,
            domains,
            batch: u32::try_from(batch).unwrap_or(u32::MAX),
        };
        let no_domain = DomainId::from(uuid::Uuid::nil());
        for domain in retention.domains.keys().chain([&no_domain]) {
            check_audit_outlives(&retention, *domain)?;
        }
        Ok(retention)
    }
}

impl RawRules {
    fn check(self, scope: &str) -> Result<Rules, ConfigError> {
        let keep =
            |name: &str, raw: Option<String>| raw.map(|raw| keep(format!("{scope}.{name}"), raw)).transpose();
        let mut actions = BTreeMap::new();
        for (raw, value) in self.actions {
            let name = format!("{scope}.actions.{raw}");
            let action: ActionName = raw.parse().map_err(|err| ConfigError::Retention {
                name: format!("{scope}.actions"),
                value: raw,
                why: format!("{err}"),
            })?;
            actions.insert(action, self::keep(name, value)?);
        }
        Ok(Rules {
            executions: keep("executions", self.executions)?,
            audit: keep("audit", self.audit)?,
            actions,
        })
    }
}

fn keep(name: String, value: String) -> Result<Keep, ConfigError> {
    if value == "forever" {
        return Ok(Keep::Forever);
    }
    match parse_duration(&value) {
        Ok(keep) if (RETENTION_MIN..=RETENTION_MAX).contains(&keep) => Ok(Keep::For(keep)),
        Ok(_) => Err(ConfigError::Retention {
            name,
            value,
            why: "it must be from 1h to 36500d, or forever".to_owned(),
        }),
        Err(why) => Err(ConfigError::Retention { name, value, why }),
    }
}

/// Evidence goes last: no audit row goes before what it is about.
fn check_audit_outlives(retention: &Retention, domain: DomainId) -> Result<(), ConfigError> {
    let Keep::For(audit) = retention.of_audit(domain) else {
        return Ok(());
    };
    let rules = retention.domains.get(&domain).unwrap_or(&retention.general);
    let named = rules.actions.keys().chain(retention.general.actions.keys());
    // Executions of which nothing is said are kept for ever.
    let of_all = rules
        .executions
        .or(retention.general.executions)
        .unwrap_or(Keep::Forever);
    let outlived = |keep: Keep| match keep {
        Keep::Forever => true,
        Keep::For(keep) => keep > audit,
    };
    let mut kept = named
        .map(|action| retention.of_action(domain, action))
        .chain([of_all]);
    if kept.any(outlived) {
        return Err(ConfigError::Retention {
            name: "retention.audit".to_owned(),
            value: format!("{}s", audit.as_secs()),
            why: "audit rows must be kept at least as long as every execution that they may be about; what has no retention is kept for ever".to_owned(),
        });
    }
    Ok(())
}
