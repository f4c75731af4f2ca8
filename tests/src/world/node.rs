//! The nodes of a world, from what they are to be to what control knows of them.

use std::{
    ops::{Deref, DerefMut},
    path::PathBuf,
};

use muster_shared::{
    ids::NodeId,
    wire::{ActionKind, Execution, NodeSummary},
};

use super::{World, on_node};
use crate::{Musterd, Operator, until};

/// The label by which a world finds a node that it named.
const NAME_LABEL: &str = "story-node";
/// A hook that says that it has begun, in the trace `ran`, and goes on until the file `go` is there.
pub const PATIENT: &str =
    "#!/bin/sh\necho begun >> @DIR@/ran\nwhile ! [ -e @DIR@/go ]; do sleep 0.05; done\necho done\n";

/// A `musterd` that is enrolled in a world.
pub struct Node {
    pub id: NodeId,
    operator: Operator,
    musterd: Musterd,
}

/// What a node is to be before it is enrolled.
pub struct NodeToBe<'w> {
    world: &'w World,
    server: String,
    labels: String,
    musterd: Musterd,
}

impl World {
    /// A node with that name, to be described and then started.
    #[must_use]
    pub fn node(&self, name: &str) -> NodeToBe<'_> {
        NodeToBe {
            world: self,
            server: self.operator.server.clone(),
            labels: format!("{NAME_LABEL}={name}"),
            musterd: Musterd::new(&self.dir.path().join("nodes"), name),
        }
    }
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

    /// Lets it connect elsewhere than to where the operator does.
    #[must_use]
    pub fn through(mut self, server: String) -> Self {
        self.server = server;
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
            server,
            labels,
            musterd,
        } = self;
        let token = world.bootstrap_token(&labels).await;
        let operator = world.operator.clone();
        let _ = musterd
            .try_enroll(&server, &token, &operator.ca_file)
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
