//! One node of a swarm.

use std::{collections::VecDeque, io, net::Ipv4Addr, sync::atomic::Ordering, time::Duration};

use muster_shared::{
    envelope::Verified,
    ids::ExecutionId,
    status::{Passed, Status},
    time::Timestamp,
    wire::{
        ActionRequest, Base64, CALLBACK_TOKEN_HEADER, Callback, CallbackOutput, HeartbeatRequest,
        INSTANCE_HEADER,
    },
};
use serde::Serialize;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    Reporting, Swarm,
    identity::Identity,
    tally::{RoundDone, add},
    wire::{Connection, Event, Events, Sessions, address_of},
};
use crate::chance;

/// What the first wait of a node that lost control is drawn from while control says nothing of it, and the longest: those
/// of `musterd`.
const BACKOFF_BASE: Duration = Duration::from_secs(1);
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// How many invocations a node remembers as ended, should control send one again.
const ENDED_KEPT: usize = 8;
/// Within which time the first heartbeat on a new stream comes.
const BACK_WITHIN: Duration = Duration::from_secs(30);

struct Node<'s> {
    swarm: &'s Swarm,
    identity: &'s Identity,
    from: Ipv4Addr,
    sessions: Sessions,
    /// Of what it reports, and when it was used last.
    own: Option<(Connection, Instant)>,
    ended: VecDeque<ExecutionId>,
}

/// Full jitter, as `musterd` waits: a restarted control is not stampeded.
fn wait_before(base: Duration, attempt: u32, chance: u32) -> Duration {
    let ceiling = base.saturating_mul(1 << attempt.min(16)).min(BACKOFF_MAX);
    ceiling.mul_f64(f64::from(chance) / f64::from(u32::MAX))
}

/// Lives until the process ends.
pub async fn live(swarm: &Swarm, identity: &Identity, number: usize) {
    let mut node = Node {
        swarm,
        identity,
        from: address_of(number),
        sessions: swarm.dialer.sessions(),
        own: None,
        ended: VecDeque::new(),
    };
    let (mut attempt, mut base) = (0, BACKOFF_BASE);
    loop {
        sleep(wait_before(base, attempt, u32::from_ne_bytes(chance()))).await;
        match node.open().await {
            Ok(mut events) => {
                attempt = 0;
                add(&swarm.tally.connected);
                add(&swarm.tally.opened);
                swarm.tally.changed.notify_one();
                let over = node.follow(&mut events).await;
                base = events.retry().unwrap_or(base);
                swarm.tally.connected.fetch_sub(1, Ordering::Relaxed);
                swarm.tally.changed.notify_one();
                if over.kind() != io::ErrorKind::UnexpectedEof {
                    swarm.tally.note_trouble(format!("a stream ended: {over}"));
                }
            }
            Err(err) => {
                attempt += 1;
                if err.kind() == io::ErrorKind::Other {
                    swarm.tally.note_trouble(format!("no stream: {err}"));
                }
            }
        }
    }
}

impl Node<'_> {
    fn head(&self, method: &str, rest: &str) -> String {
        let Identity { node, nsk, instance } = self.identity;
        format!(
            "{method} /v1/nodes/{node}/{rest} HTTP/1.1\r\nhost: control\r\nuser-agent: muster-swarm\r\nauthorization: \
             Bearer {nsk}\r\n{INSTANCE_HEADER}: {instance}\r\n"
        )
    }

    async fn open(&self) -> io::Result<Events> {
        let connection = self
            .swarm
            .dialer
            .dial(self.from, &self.sessions, &self.swarm.tally)
            .await?;
        let request = format!("{}accept: text/event-stream\r\n\r\n", self.head("GET", "events"));
        connection.into_events(request.as_bytes()).await
    }

    /// Until the stream ends; answers with why.
    async fn follow(&mut self, events: &mut Events) -> io::Error {
        let period = self.swarm.heartbeat.unwrap_or(Duration::MAX);
        let phase = f64::from(u32::from_ne_bytes(chance())) / f64::from(u32::MAX);
        let far = Duration::from_secs(86_400 * 365);
        let mut next_beat = Instant::now() + period.min(far).mul_f64(phase);
        // `musterd` says that it is back.
        let mut back = Some(Instant::now() + BACK_WITHIN.min(period).mul_f64(phase));
        loop {
            let closes_at = match (&self.own, self.swarm.reporting) {
                (Some((_, used)), Reporting::Own { kept }) => *used + kept,
                (None, Reporting::Own { .. }) | (_, Reporting::Pool { .. }) => Instant::now() + far,
            };
            tokio::select! {
                event = events.next() => match event {
                    Ok(event) => self.take(&event).await,
                    Err(err) => return err,
                },
                () = sleep_until(next_beat), if self.swarm.heartbeat.is_some() => {
                    self.beat().await;
                    next_beat += period;
                }
                () = sleep_until(back.unwrap_or(next_beat)), if back.is_some() && self.swarm.heartbeat.is_some() => {
                    back = None;
                    self.beat().await;
                }
                () = sleep_until(closes_at), if self.own.is_some() => self.own = None,
            }
        }
    }

    async fn take(&mut self, event: &Event) {
        if event.kind != "action_request" {
            return;
        }
        let now = Timestamp::now();
        match self
            .swarm
            .ring
            .open::<ActionRequest>(event.data.as_bytes(), self.identity.node, now)
        {
            // What was ended once is not run again.
            Ok(request) if self.ended.contains(&request.execution_id) => {}
            Ok(request) => self.invoke(&request).await,
            Err(refused) => self
                .swarm
                .tally
                .note_trouble(format!("an event was refused: {refused}")),
        }
    }

    /// Each report after the journal has what it says.
    async fn invoke(&mut self, request: &Verified<ActionRequest>) {
        self.swarm.tally.request_arrived();
        let (node, execution) = (self.identity.node, request.execution_id);
        let end = Callback {
            exit_code: Some(0),
            output: Some(CallbackOutput {
                inline: Some(Base64(b"{\"pong\":true}".to_vec())),
                object_key: None,
                sha256: None,
            }),
            ..Callback::of(Status::Succeeded)
        };
        // As `musterd` does where nothing is before it in the queue.
        let started = Callback {
            passed: vec![Passed::Ack],
            ..Callback::of(Status::Started)
        };
        for callback in [started, end] {
            self.swarm
                .journal
                .keep(format!("{node} {execution} {}", callback.status))
                .await;
            let extra = format!("{CALLBACK_TOKEN_HEADER}: {}\r\n", request.callback_token);
            let status = self
                .report(&format!("executions/{execution}"), &extra, &callback)
                .await;
            if status != 200 {
                let what = format!("{} of {execution} was answered {status}", callback.status);
                return self.swarm.tally.note_trouble(what);
            }
        }
        if self.ended.len() == ENDED_KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(execution);
        if let Some(done) = self.swarm.tally.end_taken() {
            tell(&Told::Settled(done));
        }
    }

    async fn beat(&mut self) {
        let beat = HeartbeatRequest {
            client_now: Timestamp::now(),
            binary_checksum: Base64(vec![0; 32]),
            binary_version: "0.0.0".to_owned(),
            nat_summary: Default::default(),
            hostname: None,
            machine_id: None,
            signing_serial: Some(1),
            told_again: None,
        };
        let status = self.report("heartbeat", "", &beat).await;
        if status == 200 {
            add(&self.swarm.tally.heartbeats);
        } else {
            self.swarm
                .tally
                .note_trouble(format!("a heartbeat was answered {status}"));
        }
    }

    /// Posts until control has answered for good; the status is its answer's.
    async fn report(&mut self, rest: &str, extra: &str, body: &impl Serialize) -> u16 {
        let body = serde_json::to_string(body).expect("a report is JSON");
        let request = format!(
            "{}{extra}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.head("POST", rest),
            body.len()
        );
        let mut attempt: u32 = 0;
        loop {
            add(&self.swarm.tally.requests);
            match self.post(request.as_bytes()).await {
                // Control is busy, or on its way down.
                Ok(status) if status < 500 && status != 429 => return status,
                Ok(_) | Err(_) => {
                    add(&self.swarm.tally.retries);
                    // The first time at once: a connection that was kept may have been closed meanwhile.
                    if attempt > 0 {
                        sleep(wait_before(
                            BACKOFF_BASE,
                            attempt - 1,
                            u32::from_ne_bytes(chance()),
                        ))
                        .await;
                    }
                    attempt += 1;
                }
            }
        }
    }

    async fn post(&mut self, request: &[u8]) -> io::Result<u16> {
        let Self {
            swarm,
            from,
            sessions,
            ..
        } = self;
        match swarm.reporting {
            Reporting::Own { kept } => {
                let known = self.own.take().map(|(connection, _)| connection);
                let mut connection = match known {
                    Some(connection) => connection,
                    None => swarm.dialer.dial(*from, sessions, &swarm.tally).await?,
                };
                let answer = connection.call(request).await?;
                if !answer.closes && !kept.is_zero() {
                    self.own = Some((connection, Instant::now()));
                }
                Ok(answer.status)
            }
            Reporting::Pool { .. } => {
                let (_place, known) = swarm.pool.take().await;
                let mut connection = match known {
                    Some(connection) => connection,
                    None => swarm.dialer.dial(*from, sessions, &swarm.tally).await?,
                };
                let answer = connection.call(request).await?;
                if !answer.closes {
                    swarm.pool.give_back(connection);
                }
                Ok(answer.status)
            }
        }
    }
}

/// One line on standard output, for the one who started the swarm.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Told {
    Settled(RoundDone),
    Connected(u64),
    Counts(super::tally::Counts),
}

pub fn tell(what: &Told) {
    use std::io::Write as _;
    let line = serde_json::to_string(what).unwrap_or_default();
    let mut out = std::io::stdout().lock();
    // Whoever does not listen any more does not want to know.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_are_spread_from_nothing() {
        assert_eq!(wait_before(BACKOFF_BASE, 0, u32::MAX), BACKOFF_BASE);
        assert_eq!(wait_before(BACKOFF_BASE, 3, u32::MAX), Duration::from_secs(8));
        assert_eq!(wait_before(BACKOFF_BASE, 40, u32::MAX), BACKOFF_MAX);
        assert_eq!(wait_before(BACKOFF_BASE, 40, 0), Duration::ZERO);
    }
}
