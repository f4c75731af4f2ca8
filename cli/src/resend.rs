//! A dispatch is made once, however often it has to be sent: every one carries a random key, and control answers the same
//! key with the same execution.

use std::time::Duration;

use reqwest::Method;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    client::{Client, Missed, Route},
    failure::Failure,
    render,
};

/// How often it is sent again when its answer was lost.
const RESENDS_MAX: u32 = 5;
/// The wait before the first time, doubled for each further one: a control that restarts is back within their sum.
const WAIT_FIRST: Duration = Duration::from_millis(500);

/// Sends a request until it is answered, and says so on standard error when once was not enough.
pub(crate) async fn until_answered<T: DeserializeOwned>(
    client: &Client,
    route: &Route,
    body: &impl Serialize,
) -> Result<T, Failure> {
    let key = key()?;
    let mut lost = 0;
    loop {
        let missed = match client.once(Method::POST, route, Some(body), Some(&key)).await {
            Ok(answer) => return Ok(answer),
            Err(missed) => missed,
        };
        // A control that was never reached is told at once; one that went away in between may come back.
        let again = missed.maybe_done || (lost > 0 && missed.failure.is_passing());
        if !again || lost == RESENDS_MAX {
            let maybe_done = missed.maybe_done || lost > 0;
            return Err(Missed { maybe_done, ..missed }.into_failure());
        }
        let wait = WAIT_FIRST.saturating_mul(1 << lost);
        lost += 1;
        render::say(&format!(
            "{}; sending it again under the same key, so that it is done once ({lost} of {RESENDS_MAX})",
            missed.failure.words()
        ));
        tokio::time::sleep(wait).await;
    }
}

/// 128 random bits.
fn key() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|err| Failure::Unexpected(format!("the system gave no random bytes: {err}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
