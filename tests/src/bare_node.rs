//! An enrolled node without a daemon: a story says each word of it.

use muster_shared::{
    envelope::{Addressed, KeyRing, Verified},
    ids::{Digest, ExecutionId, NodeId},
    time::Timestamp,
    wire::{
        ActionCancel, ActionRequest, BaselineUpdated, BuiltinAction, CALLBACK_TOKEN_HEADER, Callback,
        CapabilityManifest, DeclaredHook, EnrollRequest, EnrollResponse,
    },
};
use reqwest::Method;

use crate::{Answer, Operator, World, chance, operator::client_with_ca, sse::Frames, wait::PATIENCE};

pub struct BareNode {
    pub id: NodeId,
    pub nsk: String,
    ring: KeyRing,
    server: String,
    http: reqwest::Client,
}

impl BareNode {
    /// Enrols under labels, by the API alone.
    pub async fn enroll(world: &World, labels: &str) -> Self {
        let token = world.bootstrap_token(labels).await;
        let http = client_with_ca(&world.operator.ca_file);
        let ask = Self::enroll_request();
        let answer = Answer::to(Self::enroll_call(&http, &world.operator, &token, &ask)).await;
        let enrolled: EnrollResponse = answer.expect(201).json();
        let mut ring = KeyRing::default();
        for key in &enrolled.signing_keys {
            let public: [u8; 32] = key.public_key.0[..]
                .try_into()
                .expect("an Ed25519 key has 32 bytes");
            ring.add(&public).expect("control's key is sound");
        }
        Self {
            id: enrolled.node_id,
            nsk: enrolled.nsk,
            ring,
            server: world.operator.server.clone(),
            http,
        }
    }

    /// The same node at another address.
    #[must_use]
    pub fn through(&self, server: &Operator) -> Self {
        Self {
            server: server.server.clone(),
            nsk: self.nsk.clone(),
            ring: self.ring.clone(),
            http: self.http.clone(),
            id: self.id,
        }
    }

    #[must_use]
    pub fn enroll_request() -> EnrollRequest {
        EnrollRequest {
            enrollment_id: uuid::Builder::from_random_bytes(chance()).into_uuid(),
            hostname: "bare".to_owned(),
            machine_id: uuid::Builder::from_random_bytes(chance())
                .into_uuid()
                .simple()
                .to_string(),
            labels: Default::default(),
        }
    }

    pub fn enroll_call(
        http: &reqwest::Client,
        operator: &Operator,
        token: &str,
        ask: &EnrollRequest,
    ) -> reqwest::RequestBuilder {
        http.post(format!("{}/v1/nodes:enroll", operator.server))
            .bearer_auth(token)
            .json(ask)
    }

    /// A request with this node's own key.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http
            .request(method, format!("{}{path}", self.server))
            .bearer_auth(&self.nsk)
    }

    /// Declares what it can do; `ping` is always among it.
    pub async fn declare(&self, hooks: &[(&str, Digest)]) {
        let ping = BuiltinAction {
            name: "ping".to_owned(),
            description: None,
            parameters: vec![],
            denied: None,
        };
        let manifest = CapabilityManifest {
            binary_version: "0.0.0".to_owned(),
            binary_checksum: muster_shared::wire::Base64(vec![0; 32]),
            declared_hooks: hooks
                .iter()
                .map(|(name, checksum)| DeclaredHook {
                    name: (*name).to_owned(),
                    checksum: *checksum,
                    file_checksum: None,
                    manifest_checksum: None,
                    manifest: None,
                    denied: None,
                })
                .collect(),
            builtin_actions: vec![ping],
            labels: None,
            refused_hooks: vec![],
        };
        let path = format!("/v1/nodes/{}/capabilities", self.id);
        let _ = Answer::to(self.request(Method::PUT, &path).json(&manifest))
            .await
            .expect(200);
    }

    /// Opens the stream that control owes it.
    pub async fn stream(&self) -> Frames {
        let path = format!("/v1/nodes/{}/events", self.id);
        let response = self
            .request(Method::GET, &path)
            .send()
            .await
            .expect("control answers");
        assert_eq!(response.status(), 200);
        assert!(
            response.headers()["content-type"]
                .to_str()
                .is_ok_and(|t| t.starts_with("text/event-stream")),
            "{:?}",
            response.headers()
        );
        Frames::of(response)
    }

    /// The next action request of the stream, opened as strictly as a daemon does.
    pub async fn next_request(&self, frames: &mut Frames) -> Verified<ActionRequest> {
        self.next_event(frames, "action_request").await
    }

    /// How many action requests come before that of this execution.
    pub async fn requests_before(&self, frames: &mut Frames, last: ExecutionId) -> usize {
        let mut seen = 0;
        while self.next_request(frames).await.execution_id != last {
            seen += 1;
        }
        seen
    }

    /// The next cancel of the stream, opened as strictly.
    pub async fn next_cancel(&self, frames: &mut Frames) -> Verified<ActionCancel> {
        self.next_event(frames, "action_cancel").await
    }

    /// The next approval of a hook on the stream, opened as strictly.
    pub async fn next_baseline(&self, frames: &mut Frames) -> Verified<BaselineUpdated> {
        self.next_event(frames, "hook_baseline_updated").await
    }

    async fn next_event<T: Addressed>(&self, frames: &mut Frames, kind: &str) -> Verified<T> {
        loop {
            let frame = tokio::time::timeout(PATIENCE, frames.next())
                .await
                .unwrap_or_else(|_| panic!("control pushes an {kind}"))
                .expect("the stream stays open");
            if frame.event == kind {
                return self
                    .ring
                    .open(frame.data.as_bytes(), self.id, Timestamp::now())
                    .expect("control signs what it sends");
            }
        }
    }

    #[must_use]
    pub fn callback_path(&self, execution: ExecutionId) -> String {
        format!("/v1/nodes/{}/executions/{execution}", self.id)
    }

    /// Reports as the published surface has it.
    pub async fn report(&self, request: &ActionRequest, callback: &Callback) -> Answer {
        let call = self
            .request(Method::POST, &self.callback_path(request.execution_id))
            .header(CALLBACK_TOKEN_HEADER, &request.callback_token)
            .json(callback);
        Answer::to(call).await
    }

    /// Like [`Self::report`], for closures that make the callback.
    pub async fn report_owned(&self, request: &ActionRequest, callback: Callback) -> Answer {
        self.report(request, &callback).await
    }
}
