//! The identities of a swarm: enrolled through the API, kept in a file, so that a data directory can be used again.

use std::{fs, io, path::Path, sync::Arc};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use muster_shared::{
    ids::NodeId,
    wire::{
        Base64, BuiltinAction, CapabilityManifest, EnrollRequest, EnrollResponse, IssueTokenRequest,
        IssuedToken, SigningKeyInfo,
    },
};
use serde::{Deserialize, Serialize};

use crate::{Operator, chance};

/// How many enrol at the same time: control commits them one after the other anyway.
const AT_ONCE: usize = 32;
const USES_AT_MOST: u32 = muster_shared::wire::BOOTSTRAP_USES_MAX;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Identity {
    pub node: NodeId,
    pub nsk: String,
    /// The start of the daemon that it plays: the same each time, as if it had never been away.
    pub instance: uuid::Uuid,
}

/// All that a swarm has to know of one project.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Fleet {
    pub ca_pem: String,
    pub signing_keys: Vec<SigningKeyInfo>,
    pub nodes: Vec<Identity>,
}

impl Fleet {
    /// What the file holds; nobody when there is none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn load(path: &Path) -> io::Result<Self> {
        match fs::read(path) {
            Ok(raw) => Ok(serde_json::from_slice(&raw)?),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(err) => Err(err),
        }
    }

    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let options = fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(path)?;
        Ok(serde_json::to_writer(io::BufWriter::new(options), self)?)
    }

    /// Enrols as many as are missing to `count`, under `swarm=yes`, and has each declare `ping`.
    ///
    /// # Errors
    /// With what control said.
    pub async fn grow(&mut self, operator: &Operator, count: usize) -> Result<(), String> {
        let clients: Vec<_> = (0..AT_ONCE)
            .map(|_| crate::operator::client_with_ca(&operator.ca_file))
            .collect();
        while self.nodes.len() < count {
            let missing = (count - self.nodes.len()).min(USES_AT_MOST as usize);
            let token = Arc::new(token(operator, missing).await?);
            let first = self.nodes.len();
            let enrolled: Vec<(Identity, EnrollResponse)> = stream::iter(first..first + missing)
                .map(|number| {
                    let (http, token) = (clients[number % AT_ONCE].clone(), Arc::clone(&token));
                    async move { enroll(&http, &operator.server, &token, number).await }
                })
                .buffered(AT_ONCE)
                .try_collect()
                .await?;
            for (identity, answer) in enrolled {
                self.ca_pem = answer.ca_pem;
                self.signing_keys = answer.signing_keys;
                self.nodes.push(identity);
            }
        }
        Ok(())
    }
}

async fn token(operator: &Operator, uses: usize) -> Result<String, String> {
    let ask = IssueTokenRequest {
        labels: [("swarm".to_owned(), "yes".to_owned())]
            .into_iter()
            .filter_map(|(key, value)| Some((key.parse().ok()?, value.parse().ok()?)))
            .collect(),
        uses: u32::try_from(uses).ok(),
        ttl_seconds: Some(3600),
    };
    let body = serde_json::to_value(&ask).map_err(|err| err.to_string())?;
    let answer = operator
        .post(&operator.in_project("bootstrap-tokens"), &body)
        .await;
    let issued: IssuedToken = answer.expect(201).json();
    Ok(issued.token)
}

async fn enroll(
    http: &reqwest::Client,
    server: &str,
    token: &str,
    number: usize,
) -> Result<(Identity, EnrollResponse), String> {
    let ask = EnrollRequest {
        enrollment_id: uuid::Builder::from_random_bytes(chance()).into_uuid(),
        hostname: format!("swarm-{number}"),
        machine_id: uuid::Builder::from_random_bytes(chance())
            .into_uuid()
            .simple()
            .to_string(),
        labels: Default::default(),
    };
    let call = http
        .post(format!("{server}/v1/nodes:enroll"))
        .bearer_auth(token)
        .json(&ask);
    let answer: EnrollResponse = answered(call).await?;
    let call = http
        .put(format!("{server}/v1/nodes/{}/capabilities", answer.node_id))
        .bearer_auth(&answer.nsk)
        .json(&manifest());
    let _: serde_json::Value = answered(call).await?;
    let identity = Identity {
        node: answer.node_id,
        nsk: answer.nsk.clone(),
        instance: uuid::Builder::from_random_bytes(chance()).into_uuid(),
    };
    Ok((identity, answer))
}

async fn answered<T: serde::de::DeserializeOwned>(call: reqwest::RequestBuilder) -> Result<T, String> {
    let answer = call.send().await.map_err(|err| format!("{err:?}"))?;
    let status = answer.status();
    let text = answer.text().await.map_err(|err| format!("{err:?}"))?;
    if !status.is_success() {
        return Err(format!("control answered {status}: {text}"));
    }
    serde_json::from_str(&text).map_err(|err| format!("{err}: {text}"))
}

fn manifest() -> CapabilityManifest {
    CapabilityManifest {
        binary_version: "0.0.0".to_owned(),
        binary_checksum: Base64(vec![0; 32]),
        declared_hooks: vec![],
        builtin_actions: vec![BuiltinAction {
            name: "ping".to_owned(),
            description: None,
            parameters: vec![],
            denied: None,
        }],
        labels: None,
        refused_hooks: vec![],
    }
}
