//! Copies of the database, and what is asked of one before it is relied on.

use std::path::Path;

use super::{
    Store, StoreError,
    engine::Pool,
    statement::{query, query_scalar},
};

/// How many things that are wrong with a database are named.
const DAMAGE_NAMED_MAX: usize = 5;

/// The newest schema that this release knows.
pub(crate) fn known_schema() -> i64 {
    let migrations = sqlx::migrate!("./migrations/sqlite");
    migrations.iter().map(|one| one.version).max().unwrap_or_default()
}

impl Store {
    /// Writes the database as it is at one moment into a file that is not there yet, or is empty. Who writes meanwhile is
    /// not held up. Only SQLite is copied so.
    pub(crate) async fn copy_into(&self, path: &Path) -> Result<(), StoreError> {
        query("VACUUM INTO $1")
            .bind(path.display().to_string())
            .execute(&self.read)
            .await?;
        Ok(())
    }

    /// The schema that the database has.
    pub(crate) async fn schema_version(&self) -> Result<i64, StoreError> {
        let version: Option<i64> = query_scalar("SELECT max(version) FROM _sqlx_migrations WHERE success")
            .fetch_one(&self.read)
            .await?;
        Ok(version.unwrap_or_default())
    }

    /// What is wrong with the file itself and with the references in it; nothing of a sound one. Only SQLite is looked at
    /// so.
    pub(crate) async fn damage(&self) -> Result<Vec<String>, StoreError> {
        match &self.read {
            Pool::Sqlite(_) => {}
            Pool::Postgres(_) => return Ok(Vec::new()),
        }
        let said: Vec<String> = query_scalar("PRAGMA integrity_check(5)")
            .fetch_all(&self.read)
            .await?;
        let mut damage: Vec<String> = said.into_iter().filter(|one| one != "ok").collect();
        let dangling: Vec<String> = query_scalar("SELECT DISTINCT \"table\" FROM pragma_foreign_key_check")
            .fetch_all(&self.read)
            .await?;
        damage.extend(
            dangling
                .into_iter()
                .map(|table| format!("rows of {table} refer to what is not there")),
        );
        damage.truncate(DAMAGE_NAMED_MAX);
        Ok(damage)
    }
}
