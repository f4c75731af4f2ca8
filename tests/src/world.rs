//! One control and its nodes, from an empty directory to a checked end.

use std::{
    cell::Cell,
    collections::BTreeMap,
    net::TcpListener,
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use muster_shared::{
    ids::{ExecutionId, NodeId},
    wire::{ActionKind, Execution, NodeSummary, Page},
};
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    Daemon, Musterd, Operator,
    binaries::binary,
    chance,
    daemon::{end_supervisors_under, supervisors_under},
    operator::encoded,
    until,
};

/// The label by which a world finds a node that it named.
const NAME_LABEL: &str = "story-node";
/// How long a supervisor may take to leave after its invocation was settled.
const SUPERVISOR_LEAVES_WITHIN: Duration = Duration::from_secs(15);

const OFTEN: &str = "[limits]\nrequests_per_second = 10000\nrequests_burst = 10000\n";

pub struct World {
    pub operator: Operator,
    control: Option<Daemon>,
    control_binary: PathBuf,
    data: PathBuf,
    port: u16,
    config: Option<PathBuf>,
    open_is_fine: Cell<bool>,
    // Last, so that it outlives everything that writes into it.
    dir: TempDir,
}

/// A `musterd` that is enrolled in a world.
pub struct Node {
    pub id: NodeId,
    operator: Operator,
    musterd: Musterd,
}

/// What a node is to be before it is enrolled.
pub struct NodeToBe<'w> {
    world: &'w World,
    labels: String,
    musterd: Musterd,
}

/// A hook that says that it has begun, in the trace `ran`, and goes on until the file `go` is there.
pub const PATIENT: &str =
    "#!/bin/sh\necho begun >> @DIR@/ran\nwhile ! [ -e @DIR@/go ]; do sleep 0.05; done\necho done\n";

impl World {
    /// A control that serves, with its first domain, project and operator token, and no node.
    pub async fn new() -> Self {
        // Stories look far more often than operators do.
        Self::with_config(Some(OFTEN)).await
    }

    /// The same with a configuration file; `{dir}` in it stands for the world's directory.
    pub async fn with_config(config: Option<&str>) -> Self {
        Self::of(binary("muster-control"), config).await
    }

    /// The same with a `muster-control` of another version.
    pub async fn of_version(control_binary: PathBuf) -> Self {
        Self::of(control_binary, Some(OFTEN)).await
    }

    async fn of(control_binary: PathBuf, config: Option<&str>) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("muster-world-")
            .tempdir()
            .expect("a directory can be made");
        let data = dir.path().join("control");
        let config = config.map(|toml| {
            let path = dir.path().join("control.toml");
            let toml = toml.replace("{dir}", &dir.path().to_string_lossy());
            std::fs::write(&path, toml).expect("the configuration can be written");
            path
        });
        let port = free_port();
        let first = init_control(&control_binary, &data, port);
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
            control_binary,
            data,
            port,
            config,
            open_is_fine,
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
        &self.data
    }

    /// Starts control and waits until it says that it is ready.
    ///
    /// # Panics
    /// When it runs already, or never gets ready.
    pub async fn start(&mut self) {
        assert!(self.control.is_none(), "control runs already");
        let mut command = control_command(&self.control_binary, "serve", &self.data, self.port);
        if let Some(config) = &self.config {
            command.arg("--config").arg(config);
        }
        let mut control = Daemon::start("muster-control", command, &self.dir.path().join("control.log"));
        until("control is ready", async || {
            assert!(
                control.ended().is_none(),
                "control ended at its start:\n{}",
                control.log()
            );
            let ready = self
                .operator
                .request(reqwest::Method::GET, "/readyz")
                .send()
                .await;
            ready.is_ok_and(|answer| answer.status() == 200).then_some(())
        })
        .await;
        self.control = Some(control);
    }

    /// What is started from now on as control.
    pub fn install_control(&mut self, binary: PathBuf) {
        self.control_binary = binary;
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

    /// A node with that name, to be described and then started.
    #[must_use]
    pub fn node(&self, name: &str) -> NodeToBe<'_> {
        NodeToBe {
            world: self,
            labels: format!("{NAME_LABEL}={name}"),
            musterd: Musterd::new(&self.dir.path().join("nodes"), name),
        }
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
        let db = self.database();
        let mut tables = db
            .prepare("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
            .expect("the schema can be read");
        let names: Vec<String> = tables
            .query_map([], |row| row.get(0))
            .and_then(Iterator::collect)
            .expect("the schema can be read");
        let count = |name: &String| {
            let evidence = if name == "action_execution_event" {
                " WHERE late = 0"
            } else {
                ""
            };
            db.query_row(&format!("SELECT count(*) FROM \"{name}\"{evidence}"), [], |row| {
                row.get(0)
            })
            .expect("a table can be counted")
        };
        names
            .into_iter()
            .filter(|name| !name.contains("audit") && name != "outbox")
            .map(|name| (name.clone(), count(&name)))
            .collect()
    }

    /// Control's own database, to look at and never to change.
    #[must_use]
    pub fn database(&self) -> Connection {
        let file = std::fs::read_dir(&self.data)
            .expect("the data directory can be read")
            .flatten()
            .map(|entry| entry.path())
            .find(|path| {
                path.extension()
                    .is_some_and(|e| e == "db" || e == "sqlite" || e == "sqlite3")
            })
            .expect("control keeps a database");
        let db = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY)
            .expect("the database can be opened");
        db.busy_timeout(Duration::from_secs(10))
            .expect("a wait can be set");
        db
    }

    /// Changes control's database behind its back, for what no command does yet.
    pub fn alter(&self, sql: &str) {
        let db = Connection::open(self.database().path().expect("the database is a file"))
            .expect("the database can be opened");
        db.busy_timeout(Duration::from_secs(10))
            .expect("a wait can be set");
        db.execute_batch(sql).expect("the statement is sound");
    }

    /// Another operator with all rights in the project.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn another_operator(&self) -> Operator {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let now = muster_shared::time::Timestamp::now();
        let mint = || muster_shared::ids::RowId::mint(now, chance());
        let (id, tuple) = (mint(), mint());
        let token = format!("mop_{}", hex(&chance::<32>()));
        let hash = muster_shared::ids::Digest::of(token.as_bytes());
        self.alter(&format!(
            "INSERT INTO operator_token (id, domain_id, name, token_hash, created_ms)
                 SELECT x'{}', id, 'another', x'{}', {now} FROM domain;
             INSERT INTO relation_tuple (id, domain_id, project_id, subject, relation, resource, created_ms)
                 SELECT x'{}', domain_id, id, 'token:{id}', 'operator', 'project:{}', {now} FROM project",
            hex(id.uuid().as_bytes()),
            hex(hash.as_bytes()),
            hex(tuple.uuid().as_bytes()),
            self.operator.project,
            now = now.as_millis(),
        ));
        self.operator.with_token(&token)
    }

    /// This story means to leave invocations open.
    pub fn leave_open(&self) {
        self.open_is_fine.set(true);
    }

    fn check(&self) {
        if !self.open_is_fine.get() {
            let open = unsettled(&self.database());
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
        if let Err(panic) = checked {
            std::panic::resume_unwind(panic);
        }
    }
}

fn unsettled(db: &Connection) -> Vec<(String, String, String)> {
    let mut live = db
        .prepare(
            "SELECT execution_id, node_id, status FROM action_execution_target
              WHERE status IN ('pending', 'ack', 'started')",
        )
        .expect("the targets can be read");
    live.query_map([], |row| Ok((text(row, 0)?, text(row, 1)?, text(row, 2)?)))
        .and_then(Iterator::collect)
        .expect("the targets can be read")
}

/// Ids may be stored as text or as bytes.
fn text(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<String> {
    Ok(match row.get_ref(column)? {
        rusqlite::types::ValueRef::Blob(bytes) => format!("{bytes:02x?}"),
        rusqlite::types::ValueRef::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other @ (rusqlite::types::ValueRef::Null
        | rusqlite::types::ValueRef::Integer(_)
        | rusqlite::types::ValueRef::Real(_)) => format!("{other:?}"),
    })
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

impl NodeToBe<'_> {
    /// Adds labels, as `role=web,zone=a`.
    #[must_use]
    pub fn labels(mut self, labels: &str) -> Self {
        self.labels = format!("{},{labels}", self.labels);
        self
    }

    #[must_use]
    pub fn hook(self, name: &str, script: &str) -> Self {
        self.musterd.install_hook(name, script);
        self
    }

    #[must_use]
    pub fn config(self, toml: &str) -> Self {
        self.musterd.configure(toml);
        self
    }

    /// The directories and files of the node, for a story that does more with them than install hooks.
    #[must_use]
    pub fn prepare(self, with: impl FnOnce(&Musterd)) -> Self {
        with(&self.musterd);
        self
    }

    /// Runs it with a `musterd` of another version.
    #[must_use]
    pub fn of_version(mut self, binary: PathBuf) -> Self {
        self.musterd.install(binary);
        self
    }

    /// Enrols it and leaves it off.
    pub async fn enrolled(self) -> Node {
        let Self {
            world,
            labels,
            musterd,
        } = self;
        let token = world.bootstrap_token(&labels).await;
        let operator = world.operator.clone();
        let _ = musterd
            .try_enroll(&operator.server, &token, &operator.ca_file)
            .await
            .expect(0);
        let name = &musterd.name;
        let found = world.nodes(&format!("{NAME_LABEL}={name}")).await;
        let [summary] = &found[..] else {
            panic!("{name} is enrolled once: {found:#?}")
        };
        Node {
            id: summary.id,
            operator,
            musterd,
        }
    }

    /// Enrols and starts it, and waits until control knows what it can do.
    pub async fn start(self) -> Node {
        let mut node = self.enrolled().await;
        node.start().await;
        node
    }
}

impl NodeToBe<'_> {
    /// Starts it with the hook [`PATIENT`], which has begun when this returns.
    pub async fn at_work(self) -> (Node, Execution) {
        let world = self.world;
        let node = self.hook("patient", PATIENT).start().await;
        let running = world.dispatch(on_node("patient", node.id)).await;
        until("the hook runs", async || {
            (!node.trace("ran").is_empty()).then_some(())
        })
        .await;
        (node, running)
    }
}

impl Node {
    /// Starts the daemon and waits until control holds its stream and its hooks.
    pub async fn start(&mut self) {
        self.musterd.launch();
        let hooks = self.sound_hooks();
        self.known(async |summary| {
            let declared = |name: &String| summary.actions.iter().any(|a| a.name.as_str() == name);
            summary.connected && declared(&"ping".to_owned()) && hooks.iter().all(declared)
        })
        .await;
    }

    /// What control calls it.
    pub async fn known_name(&self) -> String {
        let path = format!("/v1/nodes/{}", self.id);
        let summary: NodeSummary = self.operator.get(&path).await.expect(200).json();
        summary.name
    }

    pub async fn restart(&mut self) {
        let _ = self.musterd.stop().await;
        self.start().await;
    }

    /// Waits until control's own view of the node is as asked.
    pub async fn known(&mut self, mut so: impl AsyncFnMut(&NodeSummary) -> bool) -> NodeSummary {
        let Self {
            id,
            operator,
            musterd,
        } = self;
        let what = format!("control knows {} as it should", musterd.name);
        until(&what, async || {
            if let Some(status) = musterd.daemon().ended() {
                panic!("{} ended: {status}\n{}", musterd.name, musterd.log());
            }
            let summary: NodeSummary = operator.get(&format!("/v1/nodes/{id}")).await.expect(200).json();
            so(&summary).await.then_some(summary)
        })
        .await
    }

    /// Changes a hook after first sight, and waits until control has seen that.
    pub async fn replace_hook(&mut self, name: &str, script: &str) {
        self.musterd.install_hook(name, script);
        let name = name.to_owned();
        self.known(async |summary| {
            summary.actions.iter().any(|action| {
                action.name.as_str() == name
                    && action.kind == ActionKind::Hook
                    && action.verdict == Some(muster_shared::wire::Verdict::Drift)
            })
        })
        .await;
    }

    /// The hooks that lie in the directory as an admin should install them: what is left out, control never hears of.
    fn sound_hooks(&self) -> Vec<String> {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.musterd.hooks)
            .expect("hooks can be listed")
            .flatten()
        {
            let about = entry.path().symlink_metadata().expect("a hook can be looked at");
            let own = about.uid() == rustix::process::geteuid().as_raw();
            let mode = about.permissions().mode();
            if about.is_file() && own && mode & 0o022 == 0 && mode & 0o100 != 0 && about.len() <= 16 << 20 {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names
    }
}

impl Deref for Node {
    type Target = Musterd;
    fn deref(&self) -> &Musterd {
        &self.musterd
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Musterd {
        &mut self.musterd
    }
}

fn init_control(binary: &Path, data: &Path, port: u16) -> Value {
    let out = control_command(binary, "init", data, port)
        .args(["-o", "json"])
        .output()
        .expect("muster-control starts");
    assert!(
        out.status.success(),
        "init: {}\n{}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    serde_json::from_slice(&out.stdout).expect("init prints what a client needs")
}

fn control_command(binary: &Path, verb: &str, data: &Path, port: u16) -> Command {
    let mut command = Command::new(binary);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
        .arg(verb)
        .arg("--data-dir")
        .arg(data)
        .args(["--listen", &format!("127.0.0.1:{port}")]);
    command
}

/// A port that nothing listens on, outside the range from which the system serves connections: control has to get the
/// same one again after a restart.
#[must_use]
pub fn free_port() -> u16 {
    for _ in 0..1000 {
        let [high, low] = chance();
        let port = 12_000 + u16::from_be_bytes([high, low]) % 18_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port on the loopback interface");
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
