//! One control and its nodes, from an empty directory to a checked end.

mod behind;
mod node;
mod place;
mod small_disk;

use std::{
    cell::Cell,
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use muster_shared::{
    ids::{ExecutionId, NodeId},
    wire::{Execution, NodeSummary, Page},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    Daemon, Database, Engine, Operator,
    binaries::binary,
    daemon::{end_supervisors_under, supervisors_under},
    operator::{Said, encoded, said_by},
    postgres::Cluster,
    until,
};
pub use node::{Node, NodeToBe, PATIENT};
pub(crate) use place::Place;
pub use place::free_port;
use place::init_control;

/// How long a supervisor may take to leave after its invocation was settled.
const SUPERVISOR_LEAVES_WITHIN: Duration = Duration::from_secs(15);

/// Stories ask far more often than operators do.
pub const OFTEN: &str = "[limits]\nrequests_per_second = 10000\nrequests_burst = 10000\n";

pub struct World {
    pub operator: Operator,
    control: Option<Daemon>,
    at: Place,
    config: Option<PathBuf>,
    open_is_fine: Cell<bool>,
    // After what uses it.
    database: Database,
    // Last, so that it outlives everything that writes into it.
    dir: TempDir,
}

/// What a world is to be.
pub struct Setup<'a> {
    /// A configuration file; `{dir}` in it stands for the world's directory.
    pub config: Option<&'a str>,
    pub engine: Engine,
    /// A cluster of the story's own, with PostgreSQL.
    pub cluster: Option<Arc<Cluster>>,
    /// The port under which control is known, where that is not its own.
    pub front: Option<u16>,
    pub control_binary: PathBuf,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            config: Some(OFTEN),
            engine: Engine::of_this_run(),
            cluster: None,
            front: None,
            control_binary: binary("muster-control"),
        }
    }
}

impl World {
    /// A control that serves, with its first domain, project and operator token, and no node.
    pub async fn new() -> Self {
        Self::made(Setup::default()).await
    }

    /// The same with a configuration file; `{dir}` in it stands for the world's directory.
    pub async fn with_config(config: Option<&str>) -> Self {
        Self::made(Setup {
            config,
            ..Setup::default()
        })
        .await
    }

    /// The same with a `muster-control` of another version.
    pub async fn of_version(control_binary: PathBuf) -> Self {
        Self::made(Setup {
            control_binary,
            ..Setup::default()
        })
        .await
    }

    /// The same with everything said.
    pub async fn made(setup: Setup<'_>) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("muster-world-")
            .tempdir()
            .expect("a directory can be made");
        let data = dir.path().join("control");
        let config = setup.config.map(|toml| {
            let path = dir.path().join("control.toml");
            let toml = toml.replace("{dir}", &dir.path().to_string_lossy());
            std::fs::write(&path, toml).expect("the configuration can be written");
            path
        });
        let database = Database::made(setup.engine, &data, setup.cluster).await;
        let at = Place {
            binary: setup.control_binary,
            data,
            port: free_port(),
            front: setup.front,
            database_url: match &database {
                Database::Sqlite(_) => None,
                Database::Postgres(database) => Some(database.url()),
            },
        };
        let first = init_control(&at);
        let text = |key: &str| {
            first[key]
                .as_str()
                .unwrap_or_else(|| panic!("no {key} in {first}"))
                .to_owned()
        };
        let operator = Operator::new(
            text("server"),
            text("token"),
            text("ca_file").into(),
            text("project_id"),
            dir.path().join("operator"),
        );
        let open_is_fine = Cell::new(false);
        let mut world = Self {
            operator,
            control: None,
            at,
            config,
            open_is_fine,
            database,
            dir,
        };
        world.start().await;
        world
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.at.data
    }

    /// Starts control and waits until it says that it is ready.
    ///
    /// # Panics
    /// When it runs already, or never gets ready.
    pub async fn start(&mut self) {
        self.launch();
        self.ready().await;
    }

    /// Starts control, and waits for nothing.
    ///
    /// # Panics
    /// When it runs already.
    pub fn launch(&mut self) {
        assert!(self.control.is_none(), "control runs already");
        self.control = Some(self.serve(&self.at, "control"));
    }

    async fn ready(&mut self) {
        let operator = self.control_itself();
        let control = self.control();
        until("control is ready", async || {
            assert!(
                control.ended().is_none(),
                "control ended at its start:\n{}",
                control.log()
            );
            operator.is_ready().await.then_some(())
        })
        .await;
    }

    /// A control at some place, on this world's database.
    pub(crate) fn serve(&self, at: &Place, name: &str) -> Daemon {
        let command = self.serve_command(at);
        let log = self.dir.path().join(format!("{name}.log"));
        Daemon::start(&format!("muster-{name}"), command, &log)
    }

    fn serve_command(&self, at: &Place) -> Command {
        let mut command = at.command(&["serve", "--listen", &format!("127.0.0.1:{}", at.port)]);
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        command
    }

    pub(crate) const fn place(&self) -> &Place {
        &self.at
    }

    /// From the next start on, control reaches its database by this socket.
    ///
    /// # Panics
    /// On SQLite.
    pub fn reach_database_by(&mut self, socket: &Path) {
        self.at.database_url = Some(self.database.postgres().url_by(socket));
    }

    /// The operator at control's own port, whatever stands in front of it.
    #[must_use]
    pub fn control_itself(&self) -> Operator {
        self.operator.through(self.at.url())
    }

    /// `muster-control` in a process of its own, beside the one that serves.
    pub async fn control_says(&self, words: &[&str]) -> crate::Said {
        let mut command = self.at.command(words);
        if let Some(config) = &self.config {
            command.env("MUSTER_CONTROL_CONFIG", config);
        }
        said_by(command.into()).await
    }

    /// What is started from now on as control.
    pub fn install_control(&mut self, binary: PathBuf) {
        self.at.binary = binary;
    }

    /// Ends control as a power cut would.
    pub fn kill9(&mut self) {
        if let Some(mut control) = self.control.take() {
            control.kill9();
        }
    }

    /// Stops control in the polite way.
    ///
    /// # Panics
    /// When it does not run.
    pub async fn stop(&mut self) -> std::process::ExitStatus {
        let mut control = self.control.take().expect("a stopped control was running");
        control.stop().await
    }

    #[must_use]
    pub fn control(&mut self) -> &mut Daemon {
        self.control.as_mut().expect("control runs")
    }

    /// A bootstrap token, by the command an operator types.
    pub async fn bootstrap_token(&self, labels: &str) -> String {
        let said = self
            .operator
            .muster(&[
                "tokens", "issue", "--labels", labels, "--uses", "1", "--ttl", "1h", "-o", "json",
            ])
            .await
            .expect(0);
        said.json()["token"]
            .as_str()
            .expect("the token is shown this once")
            .to_owned()
    }

    /// The nodes that a selector names, by the API.
    pub async fn nodes(&self, selector: &str) -> Vec<NodeSummary> {
        nodes(&self.operator, selector).await
    }

    pub async fn dispatch(&self, body: Value) -> Execution {
        self.operator.dispatch(&body).await
    }

    /// Dispatches and waits for the end.
    pub async fn run(&self, body: Value) -> Execution {
        let execution = self.dispatch(body).await;
        self.settled(execution.id).await
    }

    pub async fn settled(&self, id: ExecutionId) -> Execution {
        self.operator.settled(id).await
    }

    /// How many rows each table holds, but for what a refusal may add, its evidence, and for what goes by itself, the
    /// outbox.
    #[must_use]
    pub fn rows(&self) -> BTreeMap<String, i64> {
        let tables = self.database.tables();
        let kept = tables
            .into_iter()
            .filter(|name| !name.contains("audit") && name != "outbox");
        self.database.counts(kept.map(|name| {
            let evidence = if name == "action_execution_event" {
                "WHERE NOT late"
            } else {
                ""
            };
            (name, evidence)
        }))
    }

    /// Control's own database, behind its back.
    #[must_use]
    pub const fn database(&self) -> &Database {
        &self.database
    }

    /// Runs a command of `muster-control` on the world's data directory to its end.
    pub async fn control_tool(&self, words: &[&str]) -> Said {
        said_by(self.at.command(words).into()).await
    }

    /// This story means to leave invocations open.
    pub fn leave_open(&self) {
        self.open_is_fine.set(true);
    }

    fn check(&self) {
        if !self.open_is_fine.get() {
            let open = self.database.rows(
                "SELECT execution_id, node_id, status FROM action_execution_target
                  WHERE status IN ('pending', 'ack', 'started')",
            );
            assert!(
                open.is_empty(),
                "left unsettled (execution, node, status): {open:#?}"
            );
        }
        let deadline = Instant::now() + SUPERVISOR_LEAVES_WITHIN;
        while !supervisors_under(self.dir.path()).is_empty() {
            assert!(Instant::now() < deadline, "a supervisor outlives its invocation");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let checked = if std::thread::panicking() {
            Ok(())
        } else {
            // The processes and the directory have to go even if the world is not as it should be.
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.check()))
        };
        end_supervisors_under(self.dir.path());
        // Before its database goes.
        self.kill9();
        if let Err(panic) = checked {
            std::panic::resume_unwind(panic);
        }
    }
}

async fn nodes(operator: &Operator, selector: &str) -> Vec<NodeSummary> {
    let path = format!(
        "/v1/nodes?project_id={}&selector={}&limit=200",
        operator.project,
        encoded(selector)
    );
    let page: Page<NodeSummary> = operator.get(&path).await.expect(200).json();
    page.items
}

/// The target of one node in an execution.
#[must_use]
#[track_caller]
pub fn target(execution: &Execution, node: NodeId) -> &muster_shared::wire::ExecutionTarget {
    execution
        .targets
        .iter()
        .find(|t| t.node_id == node)
        .unwrap_or_else(|| panic!("no {node} in {execution:#?}"))
}

/// A dispatch to one node.
#[must_use]
pub fn on_node(action: &str, node: NodeId) -> Value {
    json!({"action": action, "node_id": node})
}

/// A dispatch to the nodes of a selector.
#[must_use]
pub fn on(action: &str, selector: &str) -> Value {
    json!({"action": action, "selector": selector})
}
