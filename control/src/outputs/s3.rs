//! An S3-compatible output store: presigned URLs (AWS Signature Version 4), nothing else.
//!
//! A signed checksum header makes the store itself refuse other bytes, and keep their digest for whoever asks.

use std::{fs, io, ops::Range, path::PathBuf, time::Duration};

use aws_sdk_s3::{
    Client, Config,
    config::{BehaviorVersion, Credentials, Region},
    presigning::{PresignedRequest, PresigningConfig},
    types::ChecksumMode,
};
use futures_util::{StreamExt as _, TryStreamExt as _};

use super::{Declared, Look, OutputError, Pieces, READ_URL_TTL, Upload};

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
    upload_url_ttl: Duration,
}

const CHECKSUM: &str = "x-amz-checksum-sha256";
/// How long the store may take to take a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A store from which nothing comes for this long has failed.
const STALL_MAX: Duration = Duration::from_secs(20);

impl S3Store {
    pub(crate) fn new(settings: &S3Settings, upload_url_ttl: Duration) -> io::Result<Self> {
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(STALL_MAX)
            .build()
            .map_err(|err| {
                io::Error::other(format!(
                    "{}; a store is known by the authorities of the machine: install ca-certificates",
                    crate::error_chain(&err)
                ))
            })?;
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
            upload_url_ttl,
        })
    }

    pub(super) fn bucket(&self) -> &str {
        &self.bucket
    }

    pub(super) async fn presign_upload(&self, key: &str, declared: Declared) -> Result<Upload, OutputError> {
        let Declared { bytes, sha256 } = declared;
        let length =
            i64::try_from(bytes).map_err(|_| OutputError::Refused(format!("{bytes} bytes are too many")))?;
        let request = self
            .client
            .put_object()
            .bucket(&self.bucket)
            .key(key)
            .content_length(length)
            .set_checksum_sha256(sha256.map(|sha256| sha256.to_base64()))
            .presigned(expiring(self.upload_url_ttl)?)
            .await
            .map_err(|err| OutputError::Refused(crate::error_chain(&err)))?;
        Ok(Upload {
            headers: signed_headers(&request),
            url: request.uri().to_owned(),
        })
    }

    pub(super) async fn look(&self, key: &str) -> Result<Look, OutputError> {
        let request = self
            .client
            .head_object()
            .bucket(&self.bucket)
            .key(key)
            .checksum_mode(ChecksumMode::Enabled)
            .presigned(expiring(READ_URL_TTL)?)
            .await
            .map_err(|err| OutputError::Refused(crate::error_chain(&err)))?;
        let answer = self.ask(reqwest::Method::HEAD, key, &request).await?;
        let header = |name: &str| {
            let value = answer.headers().get(name)?.to_str().ok()?;
            Some(value.to_owned())
        };
        let bytes = header("content-length").and_then(|raw| raw.parse().ok());
        Ok(Look {
            bytes: bytes.ok_or_else(|| OutputError::Refused(format!("HEAD {key} names no length")))?,
            // Of an object that came in parts it is a checksum of checksums, which is none of ours.
            sha256: header(CHECKSUM).and_then(|raw| raw.parse().ok()),
            mark: header("etag"),
        })
    }

    /// With a mark, of the object that has it and of no other.
    pub(super) async fn open(
        &self,
        key: &str,
        mark: Option<&str>,
        part: Option<Range<u64>>,
    ) -> Result<Pieces, OutputError> {
        let range = part.map(|part| format!("bytes={}-{}", part.start, part.end - 1));
        let request = self
            .client
            .get_object()
            .bucket(&self.bucket)
            .key(key)
            .set_range(range)
            .set_if_match(mark.map(str::to_owned))
            .presigned(expiring(READ_URL_TTL)?)
            .await
            .map_err(|err| OutputError::Refused(crate::error_chain(&err)))?;
        let answer = self.ask(reqwest::Method::GET, key, &request).await?;
        Ok(answer.bytes_stream().map_err(io::Error::other).boxed())
    }

    async fn ask(
        &self,
        method: reqwest::Method,
        key: &str,
        request: &PresignedRequest,
    ) -> Result<reqwest::Response, OutputError> {
        let mut ask = self.http.request(method.clone(), request.uri());
        for (name, value) in signed_headers(request) {
            ask = ask.header(name, value);
        }
        // A text with the address in it would show its signature.
        let answer = ask
            .send()
            .await
            .map_err(|err| io::Error::other(err.without_url()))?;
        match answer.status().as_u16() {
            200 | 204 | 206 => Ok(answer),
            404 => Err(OutputError::NotFound(key.to_owned())),
            status => Err(OutputError::Refused(format!(
                "{method} {key} was answered {status}"
            ))),
        }
    }

    /// Sends bytes as a node would. Answers the status, and the code of a refusal.
    pub(super) async fn put(&self, upload: &Upload, bytes: &'static [u8]) -> io::Result<(u16, String)> {
        let mut ask = self.http.put(&upload.url).body(bytes);
        for (name, value) in upload
            .headers
            .iter()
            .filter(|(name, _)| *name != "content-length")
        {
            ask = ask.header(name, value);
        }
        let failed = |err: reqwest::Error| io::Error::other(err.without_url());
        let answer = ask.send().await.map_err(failed)?;
        let status = answer.status().as_u16();
        let text = answer.text().await.map_err(failed)?;
        let code = text
            .split_once("<Code>")
            .and_then(|(_, rest)| rest.split_once("</Code>"))
            .map_or("", |(code, _)| code);
        Ok((status, code.chars().filter(char::is_ascii_alphanumeric).collect()))
    }

    pub(super) async fn delete(&self, key: &str) -> Result<(), OutputError> {
        let request = self
            .client
            .delete_object()
            .bucket(&self.bucket)
            .key(key)
            .presigned(expiring(READ_URL_TTL)?)
            .await
            .map_err(|err| OutputError::Refused(crate::error_chain(&err)))?;
        match self.ask(reqwest::Method::DELETE, key, &request).await {
            Ok(_) | Err(OutputError::NotFound(_)) => Ok(()),
            Err(err) => Err(err),
        }
    }
}

fn expiring(ttl: Duration) -> Result<PresigningConfig, OutputError> {
    PresigningConfig::expires_in(ttl).map_err(|err| OutputError::Refused(err.to_string()))
}

fn signed_headers(request: &PresignedRequest) -> std::collections::BTreeMap<String, String> {
    request
        .headers()
        .filter(|(name, _)| !name.eq_ignore_ascii_case("host"))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect()
}
