//! A control that says what no `muster-control` would say.
//!
//! It is as strict towards the daemon as the real one: who asks, with which key, in which type, for which node, with
//! which callback token, along which edge of the status machine. What it finds wrong it refuses as the real one does,
//! and keeps as a complaint that fails the story at its end, unless the story expects it.

mod faults;
mod server;
mod state;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, MutexGuard},
    time::Duration,
};

use muster_shared::{
    envelope::{Envelope, Signer},
    ids::{Digest, EventId, ExecutionId, NodeId},
    status::Status,
    wire::{
        ActionCancel, ActionKind, ActionRequest, BaselineUpdated, Callback, CapabilityManifest,
        ViolationReport,
    },
};
use tempfile::TempDir;

use crate::{
    Musterd, chance,
    daemon::{end_supervisors_under, supervisors_under},
    operator::Said,
    until,
    world::free_port,
};

pub use faults::{Refusal, RefusedRequest, RetryAfter};
pub use state::{AnswerWith, Taken};
use state::{Link, Shared, State};

/// The bootstrap token that it takes.
const BOOTSTRAP_TOKEN: &str = "fake-bootstrap-token";

pub struct FakeControl {
    shared: Arc<Shared>,
    signer: Signer,
    ca_file: PathBuf,
    dir: TempDir,
}

impl FakeControl {
    /// A control with a CA and a signing key of its own that listens on loopback.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn new() -> Self {
        Self::with_certificate_of(2000, 2999).await
    }

    /// The same with a certificate that holds from the first of these years to the end of the last.
    ///
    /// # Panics
    /// When it cannot listen.
    pub async fn with_certificate_of(first: i32, last: i32) -> Self {
        crate::use_ring();
        let dir = tempfile::Builder::new()
            .prefix("muster-fake-")
            .tempdir()
            .expect("a directory can be made");
        let signer = Signer::from_seed(&chance());
        let port = free_port();
        let pki = server::pki((first, last));
        let ca_file = dir.path().join("ca.pem");
        std::fs::write(&ca_file, &pki.ca_pem).expect("the CA can be written");
        let shared = Arc::new(Shared::new(
            port,
            pki.ca_pem.clone(),
            signer.public_key(),
            signer.keyid().to_owned(),
        ));
        server::serve(Arc::clone(&shared), &pki).await;
        Self {
            shared,
            signer,
            ca_file,
            dir,
        }
    }

    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Enrols a daemon that a story has prepared, starts it and waits for its stream.
    pub async fn start_node(&self, prepare: impl FnOnce(&Musterd)) -> Musterd {
        self.start_node_at(&self.base(), prepare).await
    }

    /// The same by another address that leads here.
    pub async fn start_node_at(&self, server: &str, prepare: impl FnOnce(&Musterd)) -> Musterd {
        let mut musterd = Musterd::new(self.dir.path(), "node");
        prepare(&musterd);
        let _ = self.try_enroll(&musterd, server).await.expect(0);
        self.launch(&mut musterd).await;
        musterd
    }

    /// Starts the daemon (again) and waits until it holds a new stream and has declared itself.
    pub async fn launch(&self, musterd: &mut Musterd) {
        let (streams, manifests) = {
            let state = self.state();
            (state.streams_opened, state.manifests.len())
        };
        musterd.launch();
        until("the daemon opens its stream and declares itself", async || {
            if let Some(status) = musterd.daemon().ended() {
                panic!("musterd ended: {status}\n{}", musterd.log());
            }
            let state = self.state();
            (state.streams_opened > streams && state.manifests.len() > manifests).then_some(())
        })
        .await;
    }

    /// Tries to enrol a daemon by that address.
    pub async fn try_enroll(&self, musterd: &Musterd, server: &str) -> Said {
        musterd.try_enroll(server, BOOTSTRAP_TOKEN, &self.ca_file).await
    }

    #[must_use]
    pub fn base(&self) -> String {
        self.shared.base()
    }

    #[must_use]
    pub fn port(&self) -> u16 {
        self.shared.port
    }

    /// The node that enrolled here.
    ///
    /// # Panics
    /// When none did.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.state().node.as_ref().expect("a node is enrolled").id
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    // ---- what it sends

    /// A request that its node should take: for it, unexpired, with a callback token.
    #[must_use]
    pub fn request(&self, action: &str, kind: ActionKind) -> ActionRequest {
        let now = self.shared.now();
        let execution_id = ExecutionId::mint(now, chance());
        let node_id = self.node_id();
        let callback_token = format!("token-of-{execution_id}");
        self.state().tokens.insert(execution_id, callback_token.clone());
        ActionRequest {
            event_id: EventId::mint(now, chance()),
            occurred_at: now,
            execution_id,
            node_id,
            action: action.parse().expect("a story names real actions"),
            kind,
            parameters: None,
            timeout_seconds: 30,
            callback_url: format!(
                "{}/v1/nodes/{node_id}/executions/{execution_id}",
                self.shared.base()
            ),
            expires_at: now.plus(Duration::from_secs(120)),
            run_until: None,
            callback_token,
            hook_digest: None,
            requested_by: None,
        }
    }

    /// A request for a hook with the digest that control holds as its baseline.
    #[must_use]
    pub fn hook_request(&self, hook: &str, digest: Digest) -> ActionRequest {
        ActionRequest {
            hook_digest: Some(digest),
            ..self.request(hook, ActionKind::Hook)
        }
    }

    /// An approval of a digest.
    #[must_use]
    pub fn approval(&self, hook: &str, digest: Digest) -> BaselineUpdated {
        let now = self.shared.now();
        BaselineUpdated {
            event_id: EventId::mint(now, chance()),
            occurred_at: now,
            node_id: self.node_id(),
            expires_at: now.plus(Duration::from_secs(120)),
            hook: hook.parse().expect("a story names real hooks"),
            digest,
            approved_at: now,
        }
    }

    /// A cancel of an execution.
    #[must_use]
    pub fn cancel(&self, execution: ExecutionId) -> ActionCancel {
        let now = self.shared.now();
        ActionCancel {
            event_id: EventId::mint(now, chance()),
            occurred_at: now,
            execution_id: execution,
            node_id: self.node_id(),
            expires_at: now.plus(Duration::from_secs(120)),
        }
    }

    #[must_use]
    pub fn signer(&self) -> &Signer {
        &self.signer
    }

    /// Pushes a sealed request.
    pub fn push(&self, request: &ActionRequest) {
        let envelope = self.signer.seal(request).expect("a request is JSON");
        self.push_envelope("action_request", &request.event_id.to_string(), &envelope);
    }

    /// Pushes a sealed approval.
    pub fn push_approval(&self, approval: &BaselineUpdated) {
        let envelope = self.signer.seal(approval).expect("an approval is JSON");
        self.push_envelope("hook_baseline_updated", &approval.event_id.to_string(), &envelope);
    }

    /// Pushes a sealed cancel.
    pub fn push_cancel(&self, cancel: &ActionCancel) {
        let envelope = self.signer.seal(cancel).expect("a cancel is JSON");
        self.push_envelope("action_cancel", &cancel.event_id.to_string(), &envelope);
    }

    pub fn push_envelope(&self, event: &str, id: &str, envelope: &Envelope) {
        self.push_frame(
            event,
            id,
            &serde_json::to_string(envelope).expect("an envelope is JSON"),
        );
    }

    /// Pushes any frame.
    pub fn push_frame(&self, event: &str, id: &str, data: &str) {
        self.push_raw(&format!("event: {event}\nid: {id}\ndata: {data}\n\n"));
    }

    /// Pushes bytes as they are.
    ///
    /// # Panics
    /// When no stream is open.
    pub fn push_raw(&self, text: &str) {
        assert!(self.try_push_raw(text), "a stream is open");
    }

    fn try_push_raw(&self, text: &str) -> bool {
        self.state()
            .stream
            .as_ref()
            .is_some_and(|stream| stream.send(text.to_owned().into()).is_ok())
    }

    /// Pushes a sealed request if a stream is open, and says whether one was.
    pub fn try_push(&self, request: &ActionRequest) -> bool {
        let envelope = self.signer.seal(request).expect("a request is JSON");
        let data = serde_json::to_string(&envelope).expect("an envelope is JSON");
        self.try_push_raw(&format!(
            "event: action_request\nid: {}\ndata: {data}\n\n",
            request.event_id
        ))
    }

    /// Pushes any frame if a stream is open.
    pub fn try_push_frame(&self, event: &str, id: &str, data: &str) {
        // Without a stream the story asks again.
        let _ = self.try_push_raw(&format!("event: {event}\nid: {id}\ndata: {data}\n\n"));
    }

    // ---- how it fails

    /// Answers the next callbacks so, one each, before it behaves again.
    pub fn answer_next(&self, answers: impl IntoIterator<Item = AnswerWith>) {
        self.state().answers.extend(answers);
    }

    /// Knows nothing of what a node has passed, as a control from before that.
    pub fn take_single_steps(&self) {
        self.state().single_steps = true;
    }

    /// Is behind, as a control that was restored from a backup.
    pub fn forget_steps(&self, execution: ExecutionId) {
        let _ = self.state().steps.remove(&execution);
    }

    /// The same, in place of what was planned before.
    pub fn answer_from_now(&self, answers: impl IntoIterator<Item = AnswerWith>) {
        self.state().answers = answers.into_iter().collect();
    }

    /// Breaks the stream's connection without a word.
    pub fn cut_stream(&self) {
        let mut state = self.state();
        state.stream = None;
        if let Some(connection) = state.stream_connection.take() {
            connection.notify_one();
        }
    }

    /// Ends the stream as a server that shuts down does.
    pub fn end_stream(&self) {
        self.state().stream = None;
    }

    /// Keeps the stream open and says nothing more on it, not even a keep-alive.
    pub fn go_silent(&self) {
        self.state().silent = true;
    }

    /// Takes no connection, and breaks those there are.
    pub fn go_away(&self) {
        self.state().link = Link::Away;
        self.cut_stream();
    }

    pub fn come_back(&self) {
        self.state().link = Link::Up;
    }

    /// Refuses what its node asks, from now on.
    pub fn refuse(&self, refusal: Refusal) {
        let mut state = self.state();
        state.refused.clear();
        state.refusing = Some(refusal);
    }

    pub fn accept_again(&self) {
        self.state().refusing = None;
    }

    /// What it refused since it began to.
    #[must_use]
    pub fn refused(&self) -> Vec<RefusedRequest> {
        self.state().refused.clone()
    }

    /// Sets its clock ahead of this machine's, or back.
    pub fn set_clock(&self, ahead_ms: i64) {
        self.state().clock_ms = ahead_ms;
    }

    /// Ends every stream as soon as it is asked for, in turns in different ways; or does so no more.
    pub fn slam_streams(&self, slams: bool) {
        self.state().slams = slams.then_some(0);
    }

    /// How many it has ended so.
    #[must_use]
    pub fn slams(&self) -> usize {
        self.state().slams.unwrap_or_default()
    }

    /// Has outputs brought to itself under another name.
    pub fn store_at(&self, base: &str) {
        self.state().store = Some(base.to_owned());
    }

    // ---- what it was told

    #[must_use]
    pub fn streams_opened(&self) -> usize {
        self.state().streams_opened
    }

    /// How many it took.
    #[must_use]
    pub fn heartbeats(&self) -> usize {
        self.state().heartbeats
    }

    #[must_use]
    pub fn manifests(&self) -> Vec<CapabilityManifest> {
        self.state().manifests.clone()
    }

    #[must_use]
    pub fn violations(&self) -> Vec<ViolationReport> {
        self.state().violations.clone()
    }

    /// Every callback that came in for an execution, whatever the answer was.
    #[must_use]
    pub fn callbacks(&self, execution: ExecutionId) -> Vec<Taken> {
        self.state()
            .callbacks
            .iter()
            .filter(|taken| taken.execution == execution)
            .cloned()
            .collect()
    }

    /// Waits for the terminal callback that was answered 200.
    pub async fn outcome(&self, execution: ExecutionId) -> Callback {
        until(&format!("the node settles {execution}"), async || {
            let taken = self.callbacks(execution);
            taken
                .into_iter()
                .find(|taken| taken.callback.status.is_terminal() && taken.answered == 200)
                .map(|taken| taken.callback)
        })
        .await
    }

    /// The steps that an execution made, in order.
    #[must_use]
    pub fn advances(&self, execution: ExecutionId) -> Vec<Status> {
        self.state().steps.get(&execution).cloned().unwrap_or_default()
    }

    /// The bytes uploaded for an execution.
    #[must_use]
    pub fn upload(&self, execution: ExecutionId) -> Option<Vec<u8>> {
        self.state().uploads.get(&execution).cloned()
    }

    /// What the daemon did that a real control would refuse; taken out, so that a story can expect it.
    #[must_use]
    pub fn take_complaints(&self) -> Vec<String> {
        std::mem::take(&mut self.state().complaints)
    }
}

impl Drop for FakeControl {
    fn drop(&mut self) {
        let left = supervisors_under(self.dir.path());
        end_supervisors_under(self.dir.path());
        if !std::thread::panicking() {
            let complaints = self.take_complaints();
            assert!(complaints.is_empty(), "the daemon misbehaved: {complaints:#?}");
            assert!(
                left.is_empty(),
                "supervisors outlive their daemon and their invocations: {left:?}"
            );
        }
    }
}
