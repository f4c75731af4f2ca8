//! The command that copies the rows where a database service holds them, as it may be shown to anybody.

use std::path::Path;

/// What `pg_dump` is to write beside the keys, and `pg_restore` to read.
pub(crate) const DUMP: &str = "control.dump";

/// For a person or a script to run: the service has tools of its own that copy it while it serves.
pub(super) fn dump_command(url: &str, backup: &Path) -> String {
    format!(
        "pg_dump --format=custom --file={} {}",
        quoted(&backup.join(DUMP).display().to_string()),
        quoted(&without_password(url))
    )
}

/// One word of a command line.
pub(crate) fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The address of a database as it may be shown; `pg_dump` finds the password in `~/.pgpass` or `PGPASSWORD`.
pub(crate) fn without_password(url: &str) -> String {
    let Ok(mut parsed) = reqwest::Url::parse(url) else {
        return "postgres://…".to_owned();
    };
    // Only an address without a host has none to take away.
    let _ = parsed.set_password(None);
    let (secret, kept): (Vec<_>, Vec<_>) = parsed
        .query_pairs()
        .into_owned()
        .partition(|(name, _)| name == "password");
    if !secret.is_empty() {
        parsed.set_query(None);
        if !kept.is_empty() {
            parsed.query_pairs_mut().extend_pairs(kept);
        }
    }
    parsed.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        let shown = dump_command("postgres://muster:hunter2@db:5432/muster", Path::new("/b"));
        assert!(
            shown.contains("postgres://muster@db:5432/muster") && shown.contains("/b/control.dump"),
            "{shown}"
        );
        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(!without_password("host=db password=hunter2").contains("hunter2"));
        let all = "postgres://muster@db/muster?password=hunter2";
        assert_eq!(without_password(all), "postgres://muster@db/muster");
        let some = "postgres:///muster?host=%2Frun&password=hunter2&sslmode=require";
        assert_eq!(
            without_password(some),
            "postgres:///muster?host=%2Frun&sslmode=require"
        );
    }
}
