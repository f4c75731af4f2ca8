//! A throw-away PostgreSQL, by `scripts/postgres`: one for all stories of a run, or one of a story's own.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use rustix::process::Signal;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, postgres::PgConnectOptions};
use tempfile::TempDir;

use crate::{Daemon, chance, hex, until};

/// Set to `skip` where there is no PostgreSQL. Nothing else makes these stories pass untold.
const VARIABLE: &str = "MUSTER_STORY_POSTGRES";
/// The directory of the socket of a server that `scripts/test` has started.
const SHARED: &str = "MUSTER_TEST_POSTGRES";

/// Whether the stories of PostgreSQL are to be left out.
#[must_use]
pub fn left_out() -> bool {
    std::env::var(VARIABLE).is_ok_and(|value| value == "skip")
}

pub struct Cluster {
    socket: PathBuf,
    /// None where it is the one of all stories, which no story may touch.
    own: Option<Own>,
}

struct Own {
    server: std::sync::Mutex<Option<Daemon>>,
    settings: Vec<String>,
    // Last, so that it outlives the server.
    dir: TempDir,
}

fn script() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/postgres"))
}

impl Cluster {
    /// The one that all stories share. Where the run has none, as with a bare `cargo nextest run`, a story makes its own.
    pub async fn shared() -> Arc<Self> {
        match std::env::var_os(SHARED) {
            Some(socket) => Arc::new(Self {
                socket: socket.into(),
                own: None,
            }),
            None => Self::own(&[]).await,
        }
    }

    /// One that a story may stop and kill, with further settings as `name=value`.
    pub async fn own(settings: &[&str]) -> Arc<Self> {
        let dir = tempfile::Builder::new()
            .prefix("muster-postgres-")
            .tempdir()
            .expect("a directory can be made");
        // Its server runs as another user than root.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))
            .expect("its mode can be set");
        let cluster = Arc::new(Self {
            socket: dir.path().to_owned(),
            own: Some(Own {
                server: std::sync::Mutex::new(None),
                settings: settings.iter().map(|&setting| setting.to_owned()).collect(),
                dir,
            }),
        });
        cluster.start().await;
        cluster
    }

    /// The directory of its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    fn its_own(&self) -> &Own {
        self.own
            .as_ref()
            .expect("the shared cluster is nobody's to touch")
    }

    /// Starts the server, and waits until it answers.
    ///
    /// # Panics
    /// When it never does.
    pub async fn start(&self) {
        let own = self.its_own();
        let mut command = Command::new(script());
        command.arg("serve").arg(own.dir.path());
        for setting in &own.settings {
            command.args(["-c", setting]);
        }
        let mut server = Daemon::start("PostgreSQL", command, &own.dir.path().join("server.log"));
        until("PostgreSQL answers", async || {
            assert!(
                server.ended().is_none(),
                "PostgreSQL ended at its start:\n{}",
                server.log()
            );
            self.try_connect("postgres").await.ok().map(drop)
        })
        .await;
        *own.server.lock().expect("nobody panics with it") = Some(server);
    }

    /// Stops the server as an admin would: what is under way is rolled back and every connection is closed.
    pub async fn stop(&self) {
        self.end_by(Signal::INT).await;
    }

    /// Ends the server as a crash would: the next start has to recover.
    pub async fn crash(&self) {
        self.end_by(Signal::QUIT).await;
    }

    async fn end_by(&self, signal: Signal) {
        let server = self
            .its_own()
            .server
            .lock()
            .expect("nobody panics with it")
            .take();
        let mut server = server.expect("a stopped server was running");
        server.signal(signal);
        let _ = server.end().await;
    }

    fn options(&self, database: &str) -> PgConnectOptions {
        PgConnectOptions::new_without_pgpass()
            .socket(&self.socket)
            .username("postgres")
            .database(database)
            .disable_statement_logging()
    }

    async fn try_connect(&self, database: &str) -> Result<PgConnection, sqlx::Error> {
        self.options(database).connect().await
    }

    /// A connection to one of its databases.
    pub async fn connect(&self, database: &str) -> PgConnection {
        self.try_connect(database).await.expect("PostgreSQL lets us in")
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let server = self.server.get_mut().expect("nobody panics with it");
        if let Some(server) = server {
            // A killed server would leave its children to notice that by themselves.
            server.signal(Signal::INT);
            while server.ended().is_none() {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
    }
}

/// A database of one world, gone with it.
pub struct PgDatabase {
    pub cluster: Arc<Cluster>,
    pub name: String,
}

impl PgDatabase {
    /// An empty one.
    pub async fn made(cluster: Arc<Cluster>) -> Self {
        let name = format!("world_{}", hex(&chance::<8>()));
        let mut admin = cluster.connect("postgres").await;
        run(&mut admin, &format!("CREATE DATABASE {name}")).await;
        Self { cluster, name }
    }

    /// A role of its own, with a password, to which the database belongs.
    pub async fn may_be_used_by(&self, role: &str, password: &str) {
        let mut admin = self.connect().await;
        run(
            &mut admin,
            &format!("CREATE ROLE {role} LOGIN PASSWORD '{password}'"),
        )
        .await;
        run(
            &mut admin,
            &format!("ALTER DATABASE {} OWNER TO {role}", self.name),
        )
        .await;
    }

    /// What `--database-url` takes.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_by(&self.cluster.socket)
    }

    /// The same by another socket, which something listens on that hands everything on.
    #[must_use]
    pub fn url_by(&self, socket: &Path) -> String {
        format!(
            "postgres://postgres@localhost/{}?host={}",
            self.name,
            socket.display()
        )
    }

    /// A connection of the story's own.
    pub async fn connect(&self) -> PgConnection {
        self.cluster.connect(&self.name).await
    }

    /// Rows as text.
    pub(crate) fn rows(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        apart(async {
            let mut db = self.connect().await;
            let rows = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
                .fetch_all(&mut db)
                .await
                .unwrap_or_else(|err| panic!("{sql}: {err}"));
            let rows = rows.iter().map(texts).collect();
            let _ = db.close().await;
            rows
        })
    }

    pub(crate) fn alter(&self, sql: &str) {
        apart(async {
            let mut db = self.connect().await;
            run(&mut db, sql).await;
            let _ = db.close().await;
        });
    }
}

/// Runs statements that have to succeed.
///
/// # Panics
/// When they do not.
pub async fn run(db: &mut PgConnection, sql: &str) {
    let _ = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(db)
        .await
        .unwrap_or_else(|err| panic!("{sql}: {err}"));
}

/// Every value as the server writes it: without parameters it answers in text.
fn texts(row: &sqlx::postgres::PgRow) -> Vec<Option<String>> {
    use sqlx::{Row as _, ValueRef as _};
    (0..row.len())
        .map(|column| {
            let value = row.try_get_raw(column).expect("the column is there");
            (!value.is_null()).then(|| value.as_str().expect("it is text").to_owned())
        })
        .collect()
}

/// Runs it on a thread with a runtime of its own: stories look into the database in the middle of plain code.
fn apart<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let on_its_own = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be made")
            .block_on(work)
    };
    std::thread::scope(|scope| {
        scope
            .spawn(on_its_own)
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl Drop for PgDatabase {
    fn drop(&mut self) {
        let gone = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        apart(async {
            // With a cluster that is stopped it goes anyway.
            if let Ok(mut admin) = self.cluster.try_connect("postgres").await {
                let _ = sqlx::raw_sql(AssertSqlSafe(gone)).execute(&mut admin).await;
            }
        });
    }
}
