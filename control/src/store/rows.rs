//! From columns to domain values. A row that cannot be one names its table, column and key.

use std::{fmt::Display, str::FromStr};

use muster_shared::{
    ids::{Digest, NodeId},
    time::Timestamp,
};
use sqlx::{
    Decode, Encode, Postgres, Row as _, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgHasArrayType, PgRow, PgTypeInfo, PgValueRef, types::Oid},
};
use uuid::Uuid;

use super::{
    sqlite::{FromSqlite, SqliteRow},
    statement::Json,
};
use rusqlite::types::ValueRef;
use sqlx::types::Json as Stored;

/// A row of either database.
pub(super) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

/// What both databases can give.
pub(super) trait Column<'r>: FromSqlite<'r> + Decode<'r, Postgres> + Type<Postgres> {}

impl<'r, T: FromSqlite<'r> + Decode<'r, Postgres> + Type<Postgres>> Column<'r> for T {}

impl Row {
    pub(super) fn try_get<'r, T: Column<'r>>(&'r self, column: &str) -> Result<T, sqlx::Error> {
        match self {
            Self::Sqlite(row) => row.try_get(column),
            Self::Postgres(row) => row.try_get(column),
        }
    }

    /// The first column, of a statement that asks for one.
    pub(super) fn only<'r, T: Column<'r>>(&'r self) -> Result<T, sqlx::Error> {
        match self {
            Self::Sqlite(row) => row.at(0),
            Self::Postgres(row) => row.try_get(0),
        }
    }
}

/// An instant as it is stored: `timestamptz` in PostgreSQL, milliseconds since the epoch in SQLite.
pub(super) struct At(pub(super) Timestamp);

/// Where PostgreSQL begins to count: 2000-01-01, in milliseconds since the epoch.
const POSTGRES_EPOCH_MS: i64 = 946_684_800_000;

impl Type<Postgres> for At {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1184))
    }
}

impl PgHasArrayType for At {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(1185))
    }
}

impl Encode<'_, Postgres> for At {
    fn encode_by_ref(&self, buf: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let since = self.0.as_millis().saturating_sub(POSTGRES_EPOCH_MS);
        // The last instant it knows is in the year 294276; past it is as good as never.
        let micros = since.saturating_mul(1000);
        buf.extend_from_slice(&micros.clamp(MICROS_MIN, MICROS_MAX).to_be_bytes());
        Ok(IsNull::No)
    }
}

const MICROS_MAX: i64 = 9_223_371_331_199_999_999;
const MICROS_MIN: i64 = -211_813_488_000_000_000;

impl Decode<'_, Postgres> for At {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        let micros = i64::from_be_bytes(value.as_bytes()?.try_into()?);
        let since = micros.div_euclid(1000);
        Ok(Self(Timestamp::from_millis(
            since.saturating_add(POSTGRES_EPOCH_MS),
        )))
    }
}

impl<'r> FromSqlite<'r> for At {
    fn from_sqlite(value: ValueRef<'r>) -> Result<Self, String> {
        i64::from_sqlite(value).map(|ms| Self(Timestamp::from_millis(ms)))
    }
}

impl<'r, T: serde::de::DeserializeOwned> FromSqlite<'r> for Stored<T> {
    fn from_sqlite(value: ValueRef<'r>) -> Result<Self, String> {
        serde_json::from_str(<&str>::from_sqlite(value)?)
            .map(Self)
            .map_err(|err| err.to_string())
    }
}

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
    row: &'r Row,
    table: &'static str,
    key: &'static str,
}

/// The nodes that targets are on.
pub(super) fn nodes_of(targets: &[Row]) -> Result<Vec<NodeId>, CorruptRow> {
    targets
        .iter()
        .map(|row| Reader::new(row, "action_execution_target", "node_id").id("node_id"))
        .collect()
}

impl<'r> Reader<'r> {
    /// `key` is the column that names the row in an error.
    pub(super) const fn new(row: &'r Row, table: &'static str, key: &'static str) -> Self {
        Self { row, table, key }
    }

    pub(super) fn corrupt(&self, column: &'static str, why: impl Display) -> CorruptRow {
        let key = self
            .row
            .try_get::<Uuid>(self.key)
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
        T: Column<'r>,
    {
        self.row.try_get(column).map_err(|err| self.corrupt(column, err))
    }

    pub(super) fn id<T: From<Uuid>>(&self, column: &'static str) -> Result<T, CorruptRow> {
        self.get::<Uuid>(column).map(T::from)
    }

    pub(super) fn at(&self, column: &'static str) -> Result<Timestamp, CorruptRow> {
        self.get::<At>(column).map(|at| at.0)
    }

    pub(super) fn at_opt(&self, column: &'static str) -> Result<Option<Timestamp>, CorruptRow> {
        Ok(self.get::<Option<At>>(column)?.map(|at| at.0))
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
        self.json_opt(column)?
            .ok_or_else(|| self.corrupt(column, "missing"))
    }

    pub(super) fn json_opt<T: serde::de::DeserializeOwned>(
        &self,
        column: &'static str,
    ) -> Result<Option<T>, CorruptRow> {
        Ok(self.get::<Option<Stored<T>>>(column)?.map(|stored| stored.0))
    }

    /// JSON that is kept as a text, byte for byte.
    pub(super) fn json_text_opt<T: serde::de::DeserializeOwned>(
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

/// A count as it is stored. None is ever so large that it would be cut.
pub(super) fn to_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// JSON as it is stored. Our own types cannot fail to be written: their keys are texts.
pub(super) fn to_json<T: serde::Serialize>(value: &T) -> Json {
    Json(serde_json::to_string(value).expect("a wire type is always JSON"))
}
