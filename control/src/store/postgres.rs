//! PostgreSQL, which is a server elsewhere. It, or the way to it, may fall silent without a word of its connections having
//! ended: whoever asks waits for a bounded time, and a connection that was left in the middle of an answer is closed.

use std::{
    io,
    time::{Duration, Instant},
};

use deadpool::{
    Runtime,
    managed::{self, Metrics, Object, PoolError, RecycleError, RecycleResult},
};
use futures_util::TryStreamExt as _;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, PgPool,
    error::BoxDynError,
    postgres::{PgArguments, PgConnectOptions, PgListener, PgPoolOptions, PgRow},
};
use tokio::{runtime::Handle, time::timeout};

use super::{
    Passing,
    engine::{TURN_MAX, passes},
};

/// How many connections read at the same time.
const READERS: u32 = 4;
/// How many look rows up for nodes: whose key it is, a target, what a node is owed, and the outbox.
const LOOKUPS: u32 = 4;
/// How long an answer may take. The server gives a writer its turn, or tells that it does not, within [`TURN_MAX`].
const ANSWER_MAX: Duration = Duration::from_secs(45);
/// How long to wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How long after one that could not be made it is tried again.
const CONNECT_AGAIN: Duration = Duration::from_millis(200);
/// How long a connection has to show that it is still there, or to end what was begun on it.
const SIGN_MAX: Duration = Duration::from_secs(5);
/// The server keeps more and more for a connection; a new one is cheap.
const LIFE_MAX: Duration = Duration::from_secs(30 * 60);
/// How long a listener hears nothing before it asks whether it is still heard.
const QUIET_MAX: Duration = Duration::from_secs(30);
/// The server ends a write that does not go on for so long: a replica that froze must not hold up the others.
const IDLE_WRITE_MAX: &str = "20s";
/// The server ends a question of a reader that takes longer.
const QUESTION_MAX: &str = "20s";
/// A transaction, and `hashtext('muster')`, once and for all: the key of the lock under which replicas write.
const BEGIN_WRITE: &str = "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock(1299541875)";
const BEGIN_SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
/// For who writes, and for who looks rows up for nodes: each row is found by its key, so that one plan serves whatever
/// values, and reads no table from its beginning however few rows the server believes in. What the server asks for itself,
/// as whether a row that is referred to is there, is planned by this too: anew for each row, it was most of its work.
const BY_KEY: [(&str, &str); 2] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
];
/// For who reads by what was asked for. A plan that was made when a table was new would read all of it for ever after, until
/// the server's statistics catch up. One for each execution costs less than that once.
const BY_VALUES: [(&str, &str); 2] = [
    ("plan_cache_mode", "force_custom_plan"),
    ("statement_timeout", QUESTION_MAX),
];

/// A text with its values, as a server gets them.
pub(super) type Given = (String, Result<PgArguments, BoxDynError>);

/// Connections to one server, made when they are needed.
#[derive(Clone)]
pub(super) struct Connections(managed::Pool<Server>);

/// Where they go, and as what.
pub(super) struct Server(PgConnectOptions);

/// Those of a service, by what they are for.
pub(super) struct ByUse {
    pub(super) write: Connections,
    pub(super) read: Connections,
    pub(super) lookup: Connections,
}

/// Connections for everything, with the schema up to date.
pub(super) async fn open(options: &PgConnectOptions) -> Result<ByUse, super::StoreError> {
    let write = Connections::to(options, &BY_KEY, 1)?;
    // Takes a lock of its own: replicas that start together go one after another.
    let migrations = sqlx::migrate!("./migrations/postgres");
    migrations.run(write.take().await?.connection()?).await?;
    Ok(ByUse {
        write,
        read: Connections::to(options, &BY_VALUES, READERS)?,
        lookup: Connections::to(options, &BY_KEY, LOOKUPS)?,
    })
}

/// One connection, which changes nothing.
pub(super) async fn open_to_read(options: &PgConnectOptions) -> Result<Connections, sqlx::Error> {
    let options = options.clone().options([("default_transaction_read_only", "on")]);
    let one = Connections::to(&options, &BY_VALUES, 1)?;
    let _ = one.take().await?;
    Ok(one)
}

impl Connections {
    fn to(options: &PgConnectOptions, planned: &[(&str, &str)], count: u32) -> Result<Self, sqlx::Error> {
        let turn_max = format!("{}s", TURN_MAX.as_secs());
        let options = options.clone().application_name("muster-control").options([
            // As for SQLite, whatever the server's default is.
            ("synchronous_commit", "on"),
            ("lock_timeout", turn_max.as_str()),
            ("idle_in_transaction_session_timeout", IDLE_WRITE_MAX),
            // What is looked up by its key is in memory, or on a disk without heads.
            ("random_page_cost", "1.1"),
            // It would be compiled for a statement that cannot do without reading a whole table, however small.
            ("jit", "off"),
        ]);
        let server = Server(options.options(planned.iter().copied()));
        let pool = managed::Pool::builder(server)
            .max_size(count as usize)
            .wait_timeout(Some(TURN_MAX))
            .runtime(Runtime::Tokio1)
            .build();
        Ok(Self(pool.map_err(|err| sqlx::Error::Configuration(err.into()))?))
    }

    /// Waits for one that nobody uses.
    pub(super) async fn take(&self) -> Result<Taken, sqlx::Error> {
        match self.0.get().await {
            Ok(link) => Ok(Taken {
                link: Some(link),
                begun: false,
            }),
            Err(PoolError::Backend(err)) => Err(err),
            Err(PoolError::Timeout(_)) => Err(sqlx::Error::PoolTimedOut),
            Err(PoolError::Closed | PoolError::NoRuntimeSpecified | PoolError::PostCreateHook(_)) => {
                Err(sqlx::Error::PoolClosed)
            }
        }
    }

    /// Takes the lock of writers now.
    pub(super) async fn begin_write(&self) -> Result<Taken, sqlx::Error> {
        self.begin(BEGIN_WRITE).await
    }

    /// What is read inside comes from one moment.
    pub(super) async fn snapshot(&self) -> Result<Taken, sqlx::Error> {
        self.begin(BEGIN_SNAPSHOT).await
    }

    async fn begin(&self, sql: &'static str) -> Result<Taken, sqlx::Error> {
        let mut taken = self.take().await?;
        // Also where the lock is not given, a transaction was begun.
        taken.begun = true;
        taken.link()?.batch(sql).await?;
        Ok(taken)
    }

    /// Hears what is told on a channel, over a connection of its own.
    pub(super) async fn listen(&self, channel: &str) -> Result<Listener, sqlx::Error> {
        let own: PgPool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(CONNECT_MAX)
            .connect_lazy_with(self.0.manager().0.clone());
        let mut listener = PgListener::connect_with(&own).await?;
        in_time(SIGN_MAX, listener.listen(channel)).await?;
        Ok(Listener(listener))
    }

    /// Those that are used are closed when they are given back.
    pub(super) async fn close(&self) {
        for link in self.0.retain(|_, _| false).removed {
            // The server notices by itself too.
            let _ = in_time(SIGN_MAX, link.connection.close()).await;
        }
        self.0.close();
    }
}

/// A connection, and whether it rests between two statements.
pub(super) struct Link {
    connection: PgConnection,
    rests: bool,
}

impl managed::Manager for Server {
    type Type = Link;
    type Error = sqlx::Error;

    /// A server that starts, or is started anew, is waited for.
    async fn create(&self) -> Result<Link, sqlx::Error> {
        let until = Instant::now() + CONNECT_MAX;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match in_time(left, self.0.connect()).await {
                Ok(connection) => {
                    let rests = true;
                    return Ok(Link { connection, rests });
                }
                Err(err) if passes(&err) != Some(Passing::Away) || left < CONNECT_AGAIN => return Err(err),
                Err(_) => tokio::time::sleep(CONNECT_AGAIN).await,
            }
        }
    }

    /// A server that was started anew is not noticed by whoever asks it something.
    async fn recycle(&self, link: &mut Link, metrics: &Metrics) -> RecycleResult<sqlx::Error> {
        if !link.rests || metrics.age() > LIFE_MAX {
            return Err(RecycleError::message("it has had its time"));
        }
        Ok(in_time(SIGN_MAX, link.connection.ping()).await?)
    }
}

impl Link {
    async fn batch(&mut self, sql: &'static str) -> Result<(), sqlx::Error> {
        self.rests = false;
        let answer = in_time(ANSWER_MAX, sqlx::raw_sql(sql).execute(&mut self.connection)).await;
        self.left(answer.map(drop))
    }

    /// A statement that is refused has come to its end. Whatever else went wrong, nobody knows what comes next on it.
    fn left<T>(&mut self, answer: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        self.rests = match &answer {
            Ok(_) => true,
            Err(err) => err.as_database_error().is_some() && passes(err) != Some(Passing::Away),
        };
        answer
    }
}

/// A connection that is used, given back when this is dropped. What was begun and not committed changed nothing then.
pub(super) struct Taken {
    link: Option<Object<Server>>,
    begun: bool,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Some(link) = self.link.take() else { return };
        match Handle::try_current() {
            Ok(_) if link.rests && !self.begun => {}
            Ok(runtime) if link.rests => drop(runtime.spawn(roll_back(link))),
            Ok(_) | Err(_) => drop(Object::take(link)),
        }
    }
}

async fn roll_back(mut link: Object<Server>) {
    let rolled_back = timeout(SIGN_MAX, link.batch("ROLLBACK")).await;
    if !matches!(rolled_back, Ok(Ok(()))) {
        drop(Object::take(link));
    }
}

impl Taken {
    fn link(&mut self) -> Result<&mut Link, sqlx::Error> {
        self.link.as_deref_mut().ok_or(sqlx::Error::WorkerCrashed)
    }

    /// For what takes as long as it takes.
    pub(super) fn connection(&mut self) -> Result<&mut PgConnection, sqlx::Error> {
        Ok(&mut self.link()?.connection)
    }

    pub(super) async fn commit(mut self) -> Result<(), sqlx::Error> {
        let committed = self.link()?.batch("COMMIT").await;
        // It has ended, one way or the other; where nobody knows, the connection does not rest.
        self.begun = false;
        committed
    }

    /// Answers how many rows were changed.
    pub(super) async fn execute(&mut self, (sql, values): Given) -> Result<u64, sqlx::Error> {
        let link = self.link()?;
        link.rests = false;
        let asked = sqlx::__query_with_result(AssertSqlSafe(sql), values).execute(&mut link.connection);
        let answer = in_time(ANSWER_MAX, asked).await;
        Ok(link.left(answer)?.rows_affected())
    }

    pub(super) async fn fetch_all(&mut self, (sql, values): Given) -> Result<Vec<PgRow>, sqlx::Error> {
        let link = self.link()?;
        link.rests = false;
        let asked = sqlx::__query_with_result(AssertSqlSafe(sql), values).fetch_all(&mut link.connection);
        let answer = in_time(ANSWER_MAX, asked).await;
        link.left(answer)
    }

    pub(super) async fn fetch_optional(
        &mut self,
        (sql, values): Given,
    ) -> Result<Option<PgRow>, sqlx::Error> {
        let link = self.link()?;
        link.rests = false;
        let asked =
            sqlx::__query_with_result(AssertSqlSafe(sql), values).fetch_optional(&mut link.connection);
        let answer = in_time(ANSWER_MAX, asked).await;
        link.left(answer)
    }

    /// Gives each row to `step` until that has enough, and answers what it made of them.
    pub(super) async fn fold<S>(
        &mut self,
        (sql, values): Given,
        mut state: S,
        mut step: impl FnMut(&mut S, PgRow) -> bool,
    ) -> Result<S, sqlx::Error> {
        let link = self.link()?;
        link.rests = false;
        let mut rows = sqlx::__query_with_result(AssertSqlSafe(sql), values).fetch(&mut link.connection);
        while let Some(row) = in_time(ANSWER_MAX, rows.try_next()).await? {
            if !step(&mut state, row) {
                // The others are on their way.
                return Ok(state);
            }
        }
        drop(rows);
        link.rests = true;
        Ok(state)
    }
}

/// What is asked is put aside: it is a few kilobytes, and would be in the future of everybody who asks.
fn in_time<T>(
    max: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> impl Future<Output = Result<T, sqlx::Error>> {
    let answer = timeout(max, Box::pin(answer));
    async move {
        answer.await.unwrap_or_else(|_| {
            let silent = format!("PostgreSQL gave no answer within {} s", max.as_secs_f32());
            Err(io::Error::new(io::ErrorKind::TimedOut, silent).into())
        })
    }
}

/// What others tell.
pub(super) struct Listener(PgListener);

impl Listener {
    /// What was told next. An error ends it, and what was told meanwhile is lost.
    pub(super) async fn next(&mut self) -> Result<String, sqlx::Error> {
        loop {
            let Ok(told) = timeout(QUIET_MAX, self.0.try_recv()).await else {
                // Nobody tells anything, or it does not come here any more.
                let _ = in_time(SIGN_MAX, sqlx::raw_sql("SELECT 1").execute(&mut self.0)).await?;
                continue;
            };
            // `None` is a connection that was made anew, without what was told in between.
            let told = told?.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionReset))?;
            return Ok(told.payload().to_owned());
        }
    }
}
