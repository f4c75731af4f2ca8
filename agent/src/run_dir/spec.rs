//! What a supervisor is to do, as the daemon writes it down for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use muster_shared::{
    ids::{ActionName, Digest, ExecutionId, NodeId},
    wire::Parameters,
};
use serde::{Deserialize, Serialize};

use crate::{limits::HookLimits, run_as::RunAs};

/// Written by the daemon, read by the supervisor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) execution_id: ExecutionId,
    pub(crate) node_id: NodeId,
    pub(crate) action: ActionName,
    /// Beside it, because they go once they were read.
    #[serde(skip)]
    pub(crate) parameters: Parameters,
    /// Those of them that the manifest declares `writeOnly`: their values are masked in the output.
    #[serde(default)]
    pub(crate) secret: BTreeSet<String>,
    pub(crate) limit_ms: u64,
    pub(crate) stop_grace_ms: u64,
    pub(crate) output_bytes_max: u64,
    pub(crate) boot_id: String,
    /// Ours to add to whatever the outcome says by itself.
    #[serde(default)]
    pub(crate) remark: Option<String>,
    #[serde(default)]
    pub(crate) run_as: RunAs,
    pub(crate) work: Work,
    /// The unit of systemd that it runs in, if any, whose limits are then systemd's affair.
    #[serde(default)]
    pub(crate) unit: Option<String>,
    #[serde(default)]
    pub(crate) limits: HookLimits,
}

/// What the supervisor runs.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub(crate) enum Work {
    /// The bytes on its standard input, which must have this digest.
    Hook { digest: Digest },
    /// Itself, as a builtin with this in its environment, that may read these paths although not everybody may, and never
    /// what lies where the daemon was given its secrets.
    Builtin {
        environment: BTreeMap<String, String>,
        readable_paths: Vec<PathBuf>,
        #[serde(default)]
        credentials: Option<PathBuf>,
    },
}

impl Work {
    /// The reason code of an attempt that never got so far.
    pub(crate) const fn not_started(&self) -> &'static str {
        match self {
            Self::Hook { .. } => "hook_not_started",
            Self::Builtin { .. } => "builtin_not_started",
        }
    }

    pub(crate) const fn noun(&self) -> &'static str {
        match self {
            Self::Hook { .. } => "hook",
            Self::Builtin { .. } => "builtin",
        }
    }
}

#[cfg(test)]
impl Spec {
    /// Of a hook of these bytes, as anything that runs as the daemon does and within limits that no test reaches.
    pub(crate) fn of_hook(bytes: &[u8]) -> Self {
        let now = muster_shared::time::Timestamp::from_millis(0);
        Self {
            execution_id: ExecutionId::mint(now, [1; 10]),
            node_id: NodeId::mint(now, [2; 10]),
            action: "test".parse().unwrap(),
            parameters: Parameters::new(),
            secret: BTreeSet::new(),
            limit_ms: 20_000,
            stop_grace_ms: 500,
            output_bytes_max: 8 << 20,
            boot_id: "boot".into(),
            remark: None,
            run_as: RunAs::default(),
            work: Work::Hook {
                digest: Digest::of(bytes),
            },
            unit: None,
            limits: HookLimits::default(),
        }
    }
}
