//! What the fake control knows: one node, its stream, and everything it ever said.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use muster_shared::{
    ids::{Digest, ExecutionId, NodeId},
    status::Status,
    time::Timestamp,
    wire::{Callback, CapabilityManifest, ViolationReport},
};
use tokio::sync::{Notify, mpsc};

use super::faults::{Refusal, RefusedRequest};

/// What to answer to one callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerWith {
    /// A problem with this status and no effect.
    Status(u16),
    /// No answer: the connection breaks before the callback had an effect.
    HangUp,
    /// The connection breaks after the callback took effect: the answer is lost, not the callback.
    TakeAndHangUp,
}

/// A callback as it came in.
#[derive(Clone, Debug)]
pub struct Taken {
    pub execution: ExecutionId,
    pub callback: Callback,
    /// The status of the answer; 0 when there was none.
    pub answered: u16,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Link {
    Up,
    Away,
}

pub(super) struct NodeKey {
    pub(super) id: NodeId,
    pub(super) nsk: String,
}

pub(super) struct Shared {
    pub(super) port: u16,
    pub(super) ca_pem: String,
    pub(super) public_key: [u8; 32],
    pub(super) keyid: String,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) link: Link,
    pub(super) node: Option<NodeKey>,
    pub(super) stream: Option<mpsc::UnboundedSender<Bytes>>,
    pub(super) stream_connection: Option<Arc<Notify>>,
    pub(super) silent: bool,
    pub(super) streams_opened: usize,
    pub(super) heartbeats: usize,
    pub(super) manifests: Vec<CapabilityManifest>,
    pub(super) violations: Vec<ViolationReport>,
    pub(super) tokens: HashMap<ExecutionId, String>,
    /// The steps that each invocation made.
    pub(super) steps: HashMap<ExecutionId, Vec<Status>>,
    /// Whether it is from before steps could be told together.
    pub(super) single_steps: bool,
    pub(super) declared: HashMap<ExecutionId, (u64, Option<Digest>)>,
    pub(super) uploads: HashMap<ExecutionId, Vec<u8>>,
    pub(super) callbacks: Vec<Taken>,
    pub(super) answers: VecDeque<AnswerWith>,
    pub(super) complaints: Vec<String>,
    pub(super) refusing: Option<Refusal>,
    pub(super) refused: Vec<RefusedRequest>,
    /// How far its clock is ahead of this machine's.
    pub(super) clock_ms: i64,
    /// How many streams it has ended as soon as they were asked for, while it does.
    pub(super) slams: Option<usize>,
    /// Another name for itself as the store of outputs.
    pub(super) store: Option<String>,
}

impl Shared {
    pub(super) fn new(port: u16, ca_pem: String, public_key: [u8; 32], keyid: String) -> Self {
        let state = State {
            link: Link::Up,
            node: None,
            stream: None,
            stream_connection: None,
            silent: false,
            streams_opened: 0,
            heartbeats: 0,
            manifests: vec![],
            violations: vec![],
            tokens: HashMap::new(),
            steps: HashMap::new(),
            single_steps: false,
            declared: HashMap::new(),
            uploads: HashMap::new(),
            callbacks: vec![],
            answers: VecDeque::new(),
            complaints: vec![],
            refusing: None,
            refused: vec![],
            clock_ms: 0,
            slams: None,
            store: None,
        };
        Self {
            port,
            ca_pem,
            public_key,
            keyid,
            state: Mutex::new(state),
        }
    }

    pub(super) fn base(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Control's own time.
    pub(super) fn now(&self) -> Timestamp {
        Timestamp::now().shifted(self.state().clock_ms)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        // A story that failed while it looked has nothing to hide from the others.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
