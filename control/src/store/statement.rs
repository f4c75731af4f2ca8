//! Statements as they are written, for either database: a text with places in it, and the values for them.

use std::{
    fmt::{Display, Write as _},
    ops::Range,
};

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
pub(super) fn storable(text: &str) -> String {
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
}

fn add(arguments: &mut PgArguments, value: Value) -> Result<(), BoxDynError> {
    match value {
        Value::Int(value) => arguments.add(value),
        Value::Bool(value) => arguments.add(value),
        Value::Text(value) => arguments.add(value),
        Value::Bytes(value) => arguments.add(value),
        Value::Uuid(value) => arguments.add(value),
        Value::At(value) => arguments.add(value.map(At)),
        Value::Json(value) => arguments.add(value),
    }
}

/// Adds the values of one column as an array. Answers its type.
fn add_column(arguments: &mut PgArguments, column: Vec<Value>) -> Result<&'static str, BoxDynError> {
    macro_rules! of {
        ($variant:ident, $name:literal, $into:expr) => {{
            let mut cells = Vec::with_capacity(column.len());
            for value in column {
                let Value::$variant(cell) = value else {
                    return Err("a column has values of two types".into());
                };
                cells.push(cell.map($into));
            }
            arguments.add(cells)?;
            Ok($name)
        }};
    }
    match column.first() {
        None => Err("a table has no rows".into()),
        Some(Value::Int(_)) => of!(Int, "int8", |n| n),
        Some(Value::Bool(_)) => of!(Bool, "bool", |yes| yes),
        Some(Value::Text(_)) => of!(Text, "text", |text| text),
        Some(Value::Bytes(_)) => of!(Bytes, "bytea", |bytes| bytes),
        Some(Value::Uuid(_)) => of!(Uuid, "uuid", |id| id),
        Some(Value::At(_)) => of!(At, "timestamptz", At),
        Some(Value::Json(_)) => of!(Json, "jsonb", |json| json),
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

/// How many rows a statement of SQLite has at most that is made for any number of them.
const POWER_MAX: usize = 256;
/// The same of PostgreSQL, where the text is the same for any number.
const PIECE_MAX: usize = 1024;

/// Cuts a list into pieces, so that the statements made for them are few enough to stay prepared.
pub(super) fn pieces<T>(items: &[T], shared: bool) -> impl Iterator<Item = &[T]> {
    let (whole, powers) = if shared {
        (items, &[][..])
    } else {
        (&[][..], items)
    };
    whole.chunks(PIECE_MAX).chain(in_powers(powers))
}

/// Cuts a list into pieces of 256, 128 and so on down to 1.
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
    InOrder(String, Vec<Table>),
}

/// Rows of values in a text.
#[derive(Clone, Debug)]
pub(super) struct Table {
    text: Range<usize>,
    values: Range<usize>,
    columns: usize,
}

impl Text {
    pub(super) fn for_sqlite(&self) -> &str {
        match self {
            Self::Numbered(sql) | Self::InOrder(sql, _) => sql,
        }
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

    /// Rows of values are an array for each column there: a text of thousands of places is read anew each time.
    pub(super) fn for_postgres(self) -> (String, Result<PgArguments, BoxDynError>) {
        let mut given = ForPostgres::default();
        let mut values = self.values.0.into_iter();
        let (sql, tables) = match self.sql {
            Text::Numbered(sql) => {
                let added = values.try_for_each(|value| add(&mut given.arguments, value));
                return (sql, added.map(|()| given.arguments));
            }
            Text::InOrder(sql, tables) => (sql, tables),
        };
        let added = given.write(&sql, &tables, &mut values);
        (given.sql, added.map(|()| given.arguments))
    }
}

/// A statement on its way to PostgreSQL.
#[derive(Default)]
struct ForPostgres {
    sql: String,
    arguments: PgArguments,
}

impl ForPostgres {
    fn write(
        &mut self,
        sql: &str,
        tables: &[Table],
        values: &mut std::vec::IntoIter<Value>,
    ) -> Result<(), BoxDynError> {
        let mut written = 0;
        for table in tables {
            self.write_places(&sql[written..table.text.start], values)?;
            self.write_table(table, values)?;
            written = table.text.end;
        }
        self.write_places(&sql[written..], values)
    }

    fn write_places(&mut self, sql: &str, values: &mut std::vec::IntoIter<Value>) -> Result<(), BoxDynError> {
        let mut pieces = sql.split('?');
        self.sql.push_str(pieces.next().unwrap_or_default());
        for (piece, value) in pieces.zip(values) {
            add(&mut self.arguments, value)?;
            write!(self.sql, "${}{piece}", self.arguments.len())?;
        }
        Ok(())
    }

    fn write_table(
        &mut self,
        table: &Table,
        values: &mut std::vec::IntoIter<Value>,
    ) -> Result<(), BoxDynError> {
        let mut columns: Vec<Vec<Value>> = vec![Vec::new(); table.columns];
        for (at, value) in values.take(table.values.len()).enumerate() {
            columns[at % table.columns].push(value);
        }
        let mut before = "SELECT * FROM unnest(";
        for column in columns {
            let kind = add_column(&mut self.arguments, column)?;
            write!(self.sql, "{before}${}::{kind}[]", self.arguments.len())?;
            before = ", ";
        }
        self.sql.push(')');
        Ok(())
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
    tables: Vec<Table>,
}

impl QueryBuilder {
    pub(super) fn new(sql: impl Into<String>) -> Self {
        Self {
            sql: sql.into(),
            values: Vec::new(),
            tables: Vec::new(),
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

    /// `VALUES (?, ?), (?, ?)`, a row for each item, of which there is one at least.
    pub(super) fn push_values<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut row_of: impl FnMut(&mut Separated<'_>, T),
    ) -> &mut Self {
        let (text, first) = (self.sql.len(), self.values.len());
        self.push("VALUES ");
        let (mut between, mut columns) = ("", 0);
        for item in items {
            self.push(between).push("(");
            let before = self.values.len();
            row_of(&mut self.separated(", "), item);
            columns = self.values.len() - before;
            self.push(")");
            between = ", ";
        }
        self.tables.push(Table {
            text: text..self.sql.len(),
            values: first..self.values.len(),
            columns,
        });
        self
    }

    /// `column IN (?, ?)`. Of no values nothing is in it, and there is no such list in PostgreSQL.
    pub(super) fn push_in<T: Into<Value>>(
        &mut self,
        column: &str,
        values: impl IntoIterator<Item = T>,
    ) -> &mut Self {
        let mut values = values.into_iter().peekable();
        if values.peek().is_none() {
            return self.push("FALSE");
        }
        self.push(column).push(" IN (");
        let mut list = self.separated(", ");
        for value in values {
            list.push_bind(value);
        }
        self.push(")")
    }

    fn separated(&mut self, between: &'static str) -> Separated<'_> {
        Separated {
            query: self,
            between,
            first: true,
        }
    }

    /// Takes what was put together.
    pub(super) fn build(&mut self) -> Statement {
        Statement {
            sql: Text::InOrder(std::mem::take(&mut self.sql), std::mem::take(&mut self.tables)),
            values: Values(std::mem::take(&mut self.values)),
        }
    }

    pub(super) fn build_scalar(&mut self) -> Scalar {
        Scalar(self.build())
    }
}

/// A change of one row for each of some rows of values. In its text `step.NAME` is the value of that name.
///
/// PostgreSQL carries it out as one statement, which joins a table of the values. SQLite has a statement that it keeps
/// prepared for each of them: joined, it would find every row, note what becomes of it, and find it once more.
pub(super) struct ForEach {
    /// From `UPDATE` to before the condition, and the condition.
    change: &'static str,
    which: &'static str,
    names: &'static [&'static str],
    rows: Vec<Values>,
}

impl ForEach {
    pub(super) const fn new(
        change: &'static str,
        which: &'static str,
        names: &'static [&'static str],
    ) -> Self {
        Self {
            change,
            which,
            names,
            rows: Vec::new(),
        }
    }

    /// A value for each name, in their order.
    pub(super) fn push<const N: usize>(&mut self, row: [Value; N]) {
        debug_assert_eq!(row.len(), self.names.len());
        self.rows.push(Values(row.into()));
    }

    /// Its text for one row, with `?N` for the value of the `N`th name, and the rows.
    pub(super) fn for_sqlite(self) -> (String, Vec<Values>) {
        let text = format!("{} {}", self.change, self.which);
        let mut pieces = text.split("step.");
        let mut sql = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let end = piece
                .find(|c: char| c != '_' && !c.is_ascii_alphanumeric())
                .unwrap_or(piece.len());
            let (name, rest) = piece.split_at(end);
            match self.names.iter().position(|known| *known == name) {
                Some(place) => write!(sql, "?{}{rest}", place + 1),
                // No column of the row that is changed may be taken for it: as it stands, the statement is refused.
                None => write!(sql, "step.{piece}"),
            }
            .expect("a string takes all that is written");
        }
        (sql, self.rows)
    }

    /// The whole as one statement.
    pub(super) fn joined(self) -> Statement {
        let mut query = QueryBuilder::new(format!("WITH step ({}) AS (", self.names.join(", ")));
        query.push_values(self.rows, |row, values| {
            for value in values.0 {
                row.push_bind(value);
            }
        });
        query.push(") ").push(self.change);
        query.push(" FROM step ").push(self.which).build()
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
        query.push(" WHERE ").push_in("x", [true, false]);
        query.push(" OR ").push_in("y", [0_i64; 0]);
        let built = query.build();
        assert_eq!(
            built.sql.for_sqlite(),
            "INSERT INTO t VALUES (?, ?), (?, ?) WHERE x IN (?, ?) OR FALSE"
        );
        assert!(
            matches!(&built.values.0[3], Value::Text(Some(text)) if text == "b\u{fffd}c"),
            "{:?}",
            built.values
        );
        let (sql, arguments) = built.for_postgres();
        assert_eq!(
            sql,
            "INSERT INTO t SELECT * FROM unnest($1::int8[], $2::text[]) WHERE x IN ($3, $4) OR FALSE"
        );
        assert_eq!(arguments.unwrap().len(), 4);
    }

    #[test]
    fn a_change_for_each_row_has_one_text_for_both() {
        let all = || {
            let mut change = ForEach::new(
                "UPDATE t SET a = coalesce(step.a, t.a), a_b = step.a_b",
                "WHERE id = step.id AND a <> step.a",
                &["id", "a", "a_b"],
            );
            change.push([1_i64.into(), "x".into(), Value::Bool(None)]);
            change.push([2_i64.into(), "y".into(), true.into()]);
            change
        };
        let (sql, rows) = all().for_sqlite();
        assert_eq!(
            sql,
            "UPDATE t SET a = coalesce(?2, t.a), a_b = ?3 WHERE id = ?1 AND a <> ?2"
        );
        assert_eq!(rows.len(), 2);
        let unknown = ForEach::new("UPDATE t SET a = step.aa", "WHERE id = step.id", &["id", "a"]);
        assert_eq!(unknown.for_sqlite().0, "UPDATE t SET a = step.aa WHERE id = ?1");
        let (sql, arguments) = all().joined().for_postgres();
        assert_eq!(
            sql,
            "WITH step (id, a, a_b) AS (SELECT * FROM unnest($1::int8[], $2::text[], $3::bool[])) \
             UPDATE t SET a = coalesce(step.a, t.a), a_b = step.a_b FROM step WHERE id = step.id AND a <> step.a"
        );
        assert_eq!(arguments.unwrap().len(), 3);
    }

    #[test]
    fn a_column_has_one_type() {
        let mut query = QueryBuilder::new("SELECT ");
        query.push_bind(1_i64).push(" UNION ");
        query.push_values([None, Some("a")], |row, text| {
            row.push_bind(text);
        });
        let (sql, arguments) = query.build().for_postgres();
        assert_eq!(sql, "SELECT $1 UNION SELECT * FROM unnest($2::text[])");
        assert!(arguments.is_ok());
        let mut query = QueryBuilder::new("");
        query.push_values([Value::Int(None), Value::Text(None)], |row, value| {
            row.push_bind(value);
        });
        assert!(query.build().for_postgres().1.is_err());
    }
}
