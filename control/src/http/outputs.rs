//! Outputs: written by nodes through signed URLs of the built-in store, read by operators whichever tier they are in.

use std::ops::Range;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use futures_util::{StreamExt as _, TryStreamExt as _};
use muster_shared::{
    ids::{Digest, ExecutionId},
    time::Timestamp,
    wire::OutputRef,
};

use super::{
    auth::{InProject, parse_node},
    executions::{execution_not_found, parse_execution},
    extract::Path,
    problem::ApiError,
    query::StrictQuery,
    range::{Wanted, wanted},
};
use crate::{
    control::{Control, Shared},
    outputs::{Look, OutputStore, UploadClaim},
    store::{ExecutionHeader, KeptOutput, TargetState},
};

/// RFC 9530: the digest of the whole, also where a part of it is given.
const REPR_DIGEST: HeaderName = HeaderName::from_static("repr-digest");

/// `PUT` through a URL that this service signed. The signature is the permission: no other is asked for.
pub(super) async fn accept(
    State(control): State<Shared>,
    Path((execution, node)): Path<(String, String)>,
    StrictQuery(claim): StrictQuery<UploadClaim>,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let OutputStore::Local(store) = &control.outputs else {
        return Err(ApiError::not_found(
            "not_found",
            "outputs of this control go to another store",
        ));
    };
    let invocation = (parse_execution(&execution)?, parse_node(&node)?);
    let signed = store.check(invocation, &claim, Timestamp::now())?;
    let chunks = body.into_data_stream().map_err(std::io::Error::other).boxed();
    open_still(
        control.store.target_now(invocation.0, invocation.1).await?,
        invocation.0,
    )?;
    let received = store.receive(signed, chunks).await?;
    // The bytes may have taken minutes to come. Asked again under the write lock, which no report can pass: what is
    // settled is not written over.
    let mut tx = control.store.begin().await?;
    let target = tx.targets(&[invocation]).await?.remove(&invocation);
    open_still(target, invocation.0)?;
    received.keep().await?;
    Ok(StatusCode::OK)
}

fn open_still(target: Option<TargetState>, execution: ExecutionId) -> Result<(), ApiError> {
    match target {
        // An end that was told without its output waits for it.
        Some(target) if !target.status.is_terminal() || target.output.is_none() => Ok(()),
        Some(_) => Err(ApiError::new(
            StatusCode::CONFLICT,
            "execution_already_terminal",
            "the invocation is settled, and its output with it",
        )),
        None => Err(execution_not_found(execution)),
    }
}

/// Where the bytes of an output are.
enum Held {
    Here(Vec<u8>),
    Stored { key: String, look: Look },
}

/// The kept output of one invocation, byte for byte, or a part of it.
pub(super) async fn read(
    State(control): State<Shared>,
    method: Method,
    caller: InProject,
    Path((_, execution, node)): Path<(String, String, String)>,
    asked: HeaderMap,
) -> Result<Response, ApiError> {
    let (id, node) = (parse_execution(&execution)?, parse_node(&node)?);
    let header = control
        .store
        .header(caller.project.id, id)
        .await?
        .ok_or_else(|| execution_not_found(id))?;
    let none = || {
        ApiError::not_found(
            "output_not_found",
            format!("node {node} has no output in execution {id}"),
        )
    };
    let KeptOutput { output, node_name } = control.store.output_of(id, node).await?.ok_or_else(none)?;
    let sha256 = output.digest();
    let (len, held) = match output {
        OutputRef::Inline { inline_bytes } => {
            let bytes = inline_bytes.0;
            (bytes.len() as u64, Held::Here(bytes))
        }
        OutputRef::ObjectStore { key, .. } => {
            let look = control.outputs.look(&key).await?;
            (look.bytes, Held::Stored { key, look })
        }
    };
    let etag = format!("\"{sha256}\"");
    let part = match wanted(range_of(&asked, &etag), len) {
        Wanted::Whole => None,
        Wanted::Part(part) => Some(part),
        Wanted::Outside => return Ok(no_such_part(len)),
    };
    let body = if method == Method::HEAD {
        Body::empty()
    } else {
        body(&control, held, sha256, part.clone()).await?
    };
    let mut response = body.into_response();
    if part.is_some() {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    let about = About {
        len,
        etag,
        sha256,
        file_name: file_name(&header, &node_name),
    };
    about.describe(response.headers_mut(), part);
    Ok(response)
}

/// Says with the refusal how much there is.
fn no_such_part(len: u64) -> Response {
    let mut response = ApiError::no_such_part(len).into_response();
    if let Ok(range) = HeaderValue::try_from(format!("bytes */{len}")) {
        response.headers_mut().insert(header::CONTENT_RANGE, range);
    }
    response
}

/// The part that is asked for, unless the asker holds the beginning of something else.
fn range_of<'h>(asked: &'h HeaderMap, etag: &str) -> Option<&'h str> {
    let same = asked
        .get(header::IF_RANGE)
        .is_none_or(|held| held.as_bytes() == etag.as_bytes());
    asked
        .get(header::RANGE)
        .filter(|_| same)
        .and_then(|range| range.to_str().ok())
}

async fn body(
    control: &Control,
    held: Held,
    sha256: Digest,
    part: Option<Range<u64>>,
) -> Result<Body, ApiError> {
    match held {
        Held::Here(mut bytes) => {
            if let Some(part) = part {
                let place = |at| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
                let (start, end) = (place(part.start), place(part.end));
                bytes.truncate(end);
                bytes.drain(..start);
            }
            Ok(Body::from(bytes))
        }
        Held::Stored { key, look } => {
            let pieces = control.outputs.read(&key, sha256, &look, part).await?;
            Ok(Body::from_stream(pieces))
        }
    }
}

/// What is said of an output beside its bytes.
struct About {
    len: u64,
    etag: String,
    sha256: Digest,
    file_name: String,
}

impl About {
    fn describe(self, headers: &mut HeaderMap, part: Option<Range<u64>>) {
        let Self {
            len,
            etag,
            sha256,
            file_name,
        } = self;
        let given = part.as_ref().map_or(len, |part| part.end - part.start);
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/octet-stream"),
        );
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(given));
        let texts = [
            (header::ETAG, Some(etag)),
            (REPR_DIGEST, Some(format!("sha-256=:{}:", sha256.to_base64()))),
            (
                header::CONTENT_DISPOSITION,
                Some(format!("attachment; filename=\"{file_name}\"")),
            ),
            (
                header::CONTENT_RANGE,
                part.map(|part| format!("bytes {}-{}/{len}", part.start, part.end - 1)),
            ),
        ];
        for (name, text) in texts {
            if let Some(value) = text.and_then(|text| HeaderValue::try_from(text).ok()) {
                headers.insert(name, value);
            }
        }
    }
}

/// A name to save it under: the action, the node as far as its name is plain, and the execution.
fn file_name(execution: &ExecutionHeader, node_name: &str) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') {
            c
        } else {
            '_'
        }
    };
    let node: String = node_name.chars().map(plain).collect();
    format!("{}-{node}-{}.out", execution.action, execution.id)
}
