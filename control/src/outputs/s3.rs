//! An S3-compatible output store: presigned URLs (AWS Signature Version 4), nothing else.

use std::{fs, io, path::PathBuf};

use aws_sdk_s3::{
    Client, Config,
    config::{BehaviorVersion, Credentials, Region},
    presigning::{PresignedRequest, PresigningConfig},
};
use futures_util::{StreamExt as _, TryStreamExt as _};

use super::{Download, OutputError, READ_URL_TTL, UPLOAD_URL_TTL, Upload};

/// `[output.s3]` of control.toml.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct S3Settings {
    /// The service's URL; AWS itself when left out.
    #[serde(default)]
    pub(crate) endpoint: Option<String>,
    pub(crate) region: String,
    pub(crate) bucket: String,
    pub(crate) access_key_id: String,
    /// A file that holds the secret access key, so that it is neither in this file nor in an environment.
    pub(crate) secret_access_key_file: PathBuf,
    /// `https://service/bucket/key` rather than `https://bucket.service/key`; most services other than AWS need it.
    #[serde(default)]
    pub(crate) path_style: bool,
}

pub(crate) struct S3Store {
    client: Client,
    http: reqwest::Client,
    bucket: String,
}

impl S3Store {
    pub(crate) fn new(settings: &S3Settings, http: reqwest::Client) -> io::Result<Self> {
        let secret = fs::read_to_string(&settings.secret_access_key_file).map_err(|err| {
            io::Error::new(
                err.kind(),
                format!("{}: {err}", settings.secret_access_key_file.display()),
            )
        })?;
        let credentials = Credentials::new(
            settings.access_key_id.clone(),
            secret.trim(),
            None,
            None,
            "control.toml",
        );
        let mut config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new(settings.region.clone()))
            .credentials_provider(credentials)
            .force_path_style(settings.path_style);
        if let Some(endpoint) = &settings.endpoint {
            config = config.endpoint_url(endpoint);
        }
        Ok(Self {
            client: Client::from_conf(config.build()),
            http,
            bucket: settings.bucket.clone(),
        })
    }

    pub(super) fn bucket(&self) -> &str {
        &self.bucket
    }

    pub(super) async fn presign_upload(&self, key: &str, len: u64) -> Result<Upload, OutputError> {
        let length =
            i64::try_from(len).map_err(|_| OutputError::Refused(format!("{len} bytes are too many")))?;
        let request = self
            .client
            .put_object()
            .bucket(&self.bucket)
            .key(key)
            .content_length(length)
            .presigned(expiring(UPLOAD_URL_TTL)?)
            .await
            .map_err(|err| OutputError::Refused(crate::error_chain(&err)))?;
        let headers = signed_headers(&request);
        Ok(Upload {
            url: request.uri().to_owned(),
            headers,
        })
    }

    pub(super) async fn read(&self, key: &str) -> Result<Download, OutputError> {
        let request = self
            .client
            .get_object()
            .bucket(&self.bucket)
            .key(key)
            .presigned(expiring(READ_URL_TTL)?)
            .await
            .map_err(|err| OutputError::Refused(crate::error_chain(&err)))?;
        let mut get = self.http.get(request.uri());
        for (name, value) in signed_headers(&request) {
            get = get.header(name, value);
        }
        let answer = get.send().await.map_err(io::Error::other)?;
        match answer.status().as_u16() {
            200 => Ok(Download {
                len: answer.content_length(),
                body: answer.bytes_stream().map_err(io::Error::other).boxed(),
            }),
            404 => Err(OutputError::NotFound(key.to_owned())),
            status => Err(OutputError::Refused(format!("GET {key} was answered {status}"))),
        }
    }
}

impl S3Store {
    pub(super) async fn delete(&self, key: &str) -> Result<(), OutputError> {
        let request = self
            .client
            .delete_object()
            .bucket(&self.bucket)
            .key(key)
            .presigned(expiring(READ_URL_TTL)?)
            .await
            .map_err(|err| OutputError::Refused(crate::error_chain(&err)))?;
        let mut delete = self.http.delete(request.uri());
        for (name, value) in signed_headers(&request) {
            delete = delete.header(name, value);
        }
        let answer = delete.send().await.map_err(io::Error::other)?;
        match answer.status().as_u16() {
            200 | 204 | 404 => Ok(()),
            status => Err(OutputError::Refused(format!(
                "DELETE {key} was answered {status}"
            ))),
        }
    }
}

fn expiring(ttl: std::time::Duration) -> Result<PresigningConfig, OutputError> {
    PresigningConfig::expires_in(ttl).map_err(|err| OutputError::Refused(err.to_string()))
}

fn signed_headers(request: &PresignedRequest) -> std::collections::BTreeMap<String, String> {
    request
        .headers()
        .filter(|(name, _)| !name.eq_ignore_ascii_case("host"))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect()
}
