//! Statements as they are written, for either database: a text with places in it, and the values for them.

use std::fmt::{Display, Write as _};

use muster_shared::time::Timestamp;
use sqlx::{
    Arguments as _, Encode, Postgres, Type,
    encode::IsNull,
    error::BoxDynError,
    postgres::{PgArgumentBuffer, PgArguments, PgHasArrayType, PgTypeInfo, types::Oid},
};
use uuid::Uuid;

use super::{
    engine::On,
    rows::{At, Column, Row},
};

/// A text that is JSON.
#[derive(Clone, Debug)]
pub(super) struct Json(pub(super) String);

/// One value of a statement. What is absent has its type all the same: PostgreSQL asks for it.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Int(Option<i64>),
    Bool(Option<bool>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
    Uuid(Option<Uuid>),
    At(Option<Timestamp>),
    Json(Option<Json>),
}

/// Each type with the variant that carries it, present or not.
macro_rules! carried {
    ($($from:ty => $variant:ident($value:ident => $into:expr);)*) => {$(
        impl From<$from> for Value {
            fn from($value: $from) -> Self {
                Self::$variant(Some($into))
            }
        }
        impl From<Option<$from>> for Value {
            fn from(value: Option<$from>) -> Self {
                Self::$variant(value.map(|$value| $into))
            }
        }
    )*};
}

carried! {
    i64 => Int(n => n);
    i32 => Int(n => n.into());
    u32 => Int(n => n.into());
    bool => Bool(yes => yes);
    &str => Text(text => storable(text));
    &String => Text(text => storable(text));
    String => Text(text => storable(&text));
    &[u8] => Bytes(bytes => bytes.to_vec());
    &Vec<u8> => Bytes(bytes => bytes.clone());
    Vec<u8> => Bytes(bytes => bytes);
    Uuid => Uuid(id => id);
    Timestamp => At(at => at);
    Json => Json(json => json);
}

/// PostgreSQL has no text with a zero byte in it. What a node says with one is kept without it, on both.
fn storable(text: &str) -> String {
    if text.contains('\0') {
        text.replace('\0', "\u{fffd}")
    } else {
        text.to_owned()
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Values(Vec<Value>);

impl Values {
    pub(super) fn get(&self, at: usize) -> Option<&Value> {
        self.0.get(at)
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn for_postgres(self) -> Result<PgArguments, BoxDynError> {
        let mut arguments = PgArguments::default();
        for value in self.0 {
            match value {
                Value::Int(value) => arguments.add(value),
                Value::Bool(value) => arguments.add(value),
                Value::Text(value) => arguments.add(value),
                Value::Bytes(value) => arguments.add(value),
                Value::Uuid(value) => arguments.add(value),
                Value::At(value) => arguments.add(value.map(At)),
                Value::Json(value) => arguments.add(value),
            }?;
        }
        Ok(arguments)
    }
}

impl Type<Postgres> for Json {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(3802))
    }
}

impl PgHasArrayType for Json {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(Oid(3807))
    }
}

impl Encode<'_, Postgres> for Json {
    fn encode_by_ref(&self, buf: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        // The version of the format of jsonb on the wire.
        buf.push(1);
        buf.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }
}

/// How many rows a statement has at most that is made for any number of them.
const POWER_MAX: usize = 256;

/// Cuts a list into pieces of 256, 128 and so on down to 1: the statements made for them are few enough to stay prepared.
pub(super) fn in_powers<T>(mut items: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let largest = items.len().checked_ilog2()?;
        let (piece, rest) = items.split_at(POWER_MAX.min(1 << largest));
        items = rest;
        Some(piece)
    })
}

/// How a text names its values.
#[derive(Clone, Debug)]
pub(super) enum Text {
    /// As `$1` and so on, each as often as it is needed.
    Numbered(String),
    /// As `?`, each once and in order. SQLite looks a name up among all others: of thousands of values, each must have none.
    InOrder(String),
}

impl Text {
    pub(super) fn for_sqlite(&self) -> &str {
        match self {
            Self::Numbered(sql) | Self::InOrder(sql) => sql,
        }
    }

    pub(super) fn for_postgres(self) -> String {
        let sql = match self {
            Self::Numbered(sql) => return sql,
            Self::InOrder(sql) => sql,
        };
        let mut pieces = sql.split('?');
        let mut numbered = pieces.next().unwrap_or_default().to_owned();
        for (piece, place) in pieces.zip(1..) {
            write!(numbered, "${place}{piece}").expect("a string takes all that is written");
        }
        numbered
    }
}

/// A whole statement, ready to run.
#[derive(Clone, Debug)]
pub(super) struct Statement {
    pub(super) sql: Text,
    pub(super) values: Values,
}

/// A statement whose text is the same every time.
pub(super) fn query(sql: &str) -> Statement {
    Statement {
        sql: Text::Numbered(sql.to_owned()),
        values: Values::default(),
    }
}

impl Statement {
    pub(super) fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.0.push(value.into());
        self
    }
}

/// A statement that asks for one column.
pub(super) struct Scalar(Statement);

pub(super) fn query_scalar(sql: &str) -> Scalar {
    Scalar(query(sql))
}

impl Scalar {
    pub(super) fn bind(self, value: impl Into<Value>) -> Self {
        Self(self.0.bind(value))
    }

    pub(super) async fn fetch_one<'c, T: for<'r> Column<'r>>(
        self,
        on: impl Into<On<'c>>,
    ) -> Result<T, sqlx::Error> {
        self.0.fetch_one(on).await?.only()
    }

    pub(super) async fn fetch_all<'c, T: for<'r> Column<'r>>(
        self,
        on: impl Into<On<'c>>,
    ) -> Result<Vec<T>, sqlx::Error> {
        self.0.fetch_all(on).await?.iter().map(Row::only).collect()
    }
}

/// A statement that is put together. What is pushed has no `?` of its own.
pub(super) struct QueryBuilder {
    sql: String,
    values: Vec<Value>,
}

impl QueryBuilder {
    pub(super) fn new(sql: impl Into<String>) -> Self {
        Self {
            sql: sql.into(),
            values: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, sql: impl Display) -> &mut Self {
        write!(self.sql, "{sql}").expect("a string takes all that is written");
        self
    }

    pub(super) fn push_bind(&mut self, value: impl Into<Value>) -> &mut Self {
        self.values.push(value.into());
        self.sql.push('?');
        self
    }

    /// `(?, ?), (?, ?)`, a row for each item; nothing for none.
    pub(super) fn push_values<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut row_of: impl FnMut(&mut Separated<'_>, T),
    ) -> &mut Self {
        self.push("VALUES ");
        let mut between = "";
        for item in items {
            self.push(between).push("(");
            row_of(&mut self.separated(", "), item);
            self.push(")");
            between = ", ";
        }
        self
    }

    pub(super) fn separated(&mut self, between: &'static str) -> Separated<'_> {
        Separated {
            query: self,
            between,
            first: true,
        }
    }

    /// Takes what was put together.
    pub(super) fn build(&mut self) -> Statement {
        Statement {
            sql: Text::InOrder(std::mem::take(&mut self.sql)),
            values: Values(std::mem::take(&mut self.values)),
        }
    }

    pub(super) fn build_scalar(&mut self) -> Scalar {
        Scalar(self.build())
    }
}

/// A list, with something between its items.
pub(super) struct Separated<'q> {
    query: &'q mut QueryBuilder,
    between: &'static str,
    first: bool,
}

impl Separated<'_> {
    pub(super) fn push_bind(&mut self, value: impl Into<Value>) -> &mut Self {
        if !std::mem::take(&mut self.first) {
            self.query.push(self.between);
        }
        self.query.push_bind(value);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_cut_into_powers_of_two() {
        let items: Vec<u32> = (0..683).collect();
        let pieces: Vec<&[u32]> = in_powers(&items).collect();
        let sizes: Vec<usize> = pieces.iter().map(|piece| piece.len()).collect();
        assert_eq!(sizes, [256, 256, 128, 32, 8, 2, 1]);
        assert_eq!(pieces.concat(), items);
        assert_eq!(in_powers::<u32>(&[]).count(), 0);
    }

    #[test]
    fn values_are_numbered_in_the_order_of_the_text() {
        let mut query = QueryBuilder::new("INSERT INTO t ");
        query.push_values([(1_i64, "a"), (2, "b\0c")], |row, (n, text)| {
            row.push_bind(n).push_bind(text);
        });
        query.push(" WHERE x IN (");
        let mut list = query.separated(", ");
        list.push_bind(true).push_bind(None::<i64>);
        let built = query.push(")").build();
        assert_eq!(
            built.sql.for_sqlite(),
            "INSERT INTO t VALUES (?, ?), (?, ?) WHERE x IN (?, ?)"
        );
        assert_eq!(
            built.sql.for_postgres(),
            "INSERT INTO t VALUES ($1, $2), ($3, $4) WHERE x IN ($5, $6)"
        );
        assert!(
            matches!(&built.values.0[3], Value::Text(Some(text)) if text == "b\u{fffd}c"),
            "{:?}",
            built.values
        );
    }
}
