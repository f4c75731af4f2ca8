//! From columns to domain values. A row that cannot be one names its table, column and key.

use std::{fmt::Display, str::FromStr};

use muster_shared::{
    ids::{Digest, NodeId},
    time::Timestamp,
};
use sqlx::{Row as _, sqlite::SqliteRow};
use uuid::Uuid;

/// A stored value that no release of Muster wrote.
#[derive(Debug, thiserror::Error)]
#[error("corrupt row: {table}.{column} of {key}: {why}")]
pub(crate) struct CorruptRow {
    table: &'static str,
    column: &'static str,
    key: String,
    why: String,
}

/// Reads the columns of one row, and says of a bad one where it stands.
pub(super) struct Reader<'r> {
    row: &'r SqliteRow,
    table: &'static str,
    key: &'static str,
}

/// The nodes that targets are on.
pub(super) fn nodes_of(targets: &[SqliteRow]) -> Result<Vec<NodeId>, CorruptRow> {
    targets
        .iter()
        .map(|row| Reader::new(row, "action_execution_target", "node_id").id("node_id"))
        .collect()
}

impl<'r> Reader<'r> {
    /// `key` is the column that names the row in an error.
    pub(super) const fn new(row: &'r SqliteRow, table: &'static str, key: &'static str) -> Self {
        Self { row, table, key }
    }

    pub(super) fn corrupt(&self, column: &'static str, why: impl Display) -> CorruptRow {
        let key = self
            .row
            .try_get::<Uuid, _>(self.key)
            .map_or_else(|_| "?".to_owned(), |id| id.to_string());
        CorruptRow {
            table: self.table,
            column,
            key,
            why: why.to_string(),
        }
    }

    pub(super) fn get<T>(&self, column: &'static str) -> Result<T, CorruptRow>
    where
        T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
    {
        self.row.try_get(column).map_err(|err| self.corrupt(column, err))
    }

    pub(super) fn id<T: From<Uuid>>(&self, column: &'static str) -> Result<T, CorruptRow> {
        self.get::<Uuid>(column).map(T::from)
    }

    pub(super) fn at(&self, column: &'static str) -> Result<Timestamp, CorruptRow> {
        self.get(column).map(Timestamp::from_millis)
    }

    pub(super) fn at_opt(&self, column: &'static str) -> Result<Option<Timestamp>, CorruptRow> {
        Ok(self.get::<Option<i64>>(column)?.map(Timestamp::from_millis))
    }

    pub(super) fn digest_opt(&self, column: &'static str) -> Result<Option<Digest>, CorruptRow> {
        self.get::<Option<Vec<u8>>>(column)?
            .map(|bytes| {
                bytes
                    .try_into()
                    .map(Digest::from_bytes)
                    .map_err(|_| self.corrupt(column, "not 32 bytes"))
            })
            .transpose()
    }

    pub(super) fn digest(&self, column: &'static str) -> Result<Digest, CorruptRow> {
        self.digest_opt(column)?
            .ok_or_else(|| self.corrupt(column, "missing"))
    }

    pub(super) fn parsed<T: FromStr<Err: Display>>(&self, column: &'static str) -> Result<T, CorruptRow> {
        self.get::<String>(column)?
            .parse()
            .map_err(|err: T::Err| self.corrupt(column, err))
    }

    pub(super) fn json<T: serde::de::DeserializeOwned>(&self, column: &'static str) -> Result<T, CorruptRow> {
        serde_json::from_str(self.get(column)?).map_err(|err| self.corrupt(column, err))
    }

    pub(super) fn json_opt<T: serde::de::DeserializeOwned>(
        &self,
        column: &'static str,
    ) -> Result<Option<T>, CorruptRow> {
        self.get::<Option<&str>>(column)?
            .map(|text| serde_json::from_str(text).map_err(|err| self.corrupt(column, err)))
            .transpose()
    }

    pub(super) fn number<T: TryFrom<i64>>(&self, column: &'static str) -> Result<T, CorruptRow> {
        let stored: i64 = self.get(column)?;
        T::try_from(stored).map_err(|_| self.corrupt(column, format!("{stored} is out of range")))
    }

    pub(super) fn number_opt<T: TryFrom<i64>>(&self, column: &'static str) -> Result<Option<T>, CorruptRow> {
        self.get::<Option<i64>>(column)?
            .map(|stored| {
                T::try_from(stored).map_err(|_| self.corrupt(column, format!("{stored} is out of range")))
            })
            .transpose()
    }
}

/// JSON as it is stored. Our own types cannot fail to be written: their keys are texts.
pub(super) fn to_json<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("a wire type is always JSON")
}
