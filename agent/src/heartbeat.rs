//! The sign of life, and the measuring of the clock that comes with its answer.

use std::{
    io::Read as _,
    time::{Duration, Instant},
};

use muster_shared::{
    ids::{Digest, Digester},
    time::Timestamp,
    wire::{Base64, HeartbeatRequest, Parameters},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};

use crate::{
    backoff::{self, Backoff},
    clock::{self, Clock},
    control::{CallError, Control},
    declare::Poke,
};

/// The program that runs, as control compares it.
#[derive(Clone, Copy)]
pub(crate) struct Binary {
    pub(crate) checksum: Digest,
}

impl Binary {
    /// Of the file that was started, also when another one has taken its name since.
    pub(crate) fn of_this_process() -> std::io::Result<Self> {
        let mut file = std::fs::File::open("/proc/self/exe")?;
        let mut buffer = vec![0; 64 * 1024];
        let mut digester = Digester::default();
        loop {
            match file.read(&mut buffer)? {
                0 => {
                    return Ok(Self {
                        checksum: digester.finish(),
                    });
                }
                count => digester.update(&buffer[..count]),
            }
        }
    }
}

pub(crate) struct Heart {
    pub(crate) control: Control,
    pub(crate) clock: Clock,
    pub(crate) binary: Binary,
    pub(crate) interval: Duration,
    pub(crate) backoff: backoff::Bounds,
    pub(crate) pokes: mpsc::Sender<Poke>,
}

impl Heart {
    /// `measured` is told when the clock has been measured for the first time, or could not be.
    pub(crate) async fn beat(self, measured: oneshot::Sender<()>) {
        let mut measured = Some(measured);
        let (mut failing, mut skewed) = (false, false);
        // Tried again sooner than the next one is due, never later.
        let mut backoff = Backoff::new(backoff::Bounds {
            max: self.backoff.max.min(self.interval),
            ..self.backoff
        });
        loop {
            let wait = match self.once(&mut skewed).await {
                Ok(reconcile) => {
                    failing = false;
                    backoff.reset();
                    if reconcile && self.pokes.send(Poke::Declare).await.is_err() {
                        return;
                    }
                    self.interval
                }
                Err(err) => {
                    let level = if failing {
                        log::Level::Debug
                    } else {
                        log::Level::Warn
                    };
                    log::log!(level, error:% = err; "The heartbeat was not taken and is tried again");
                    failing = true;
                    backoff.next_unless_asked(err.retry_after(), backoff::chance())
                }
            };
            // Nobody waits for it any more after the first time.
            if let Some(measured) = measured.take() {
                let _ = measured.send(());
            }
            sleep(wait).await;
        }
    }

    async fn once(&self, skewed: &mut bool) -> Result<bool, CallError> {
        let (asked_at, since) = (Timestamp::now(), Instant::now());
        let answer = self
            .control
            .heartbeat(&HeartbeatRequest {
                client_now: asked_at,
                binary_checksum: Base64(self.binary.checksum.as_bytes().to_vec()),
                binary_version: env!("CARGO_PKG_VERSION").to_owned(),
                nat_summary: Parameters::new(),
            })
            .await?;
        let offset_ms = clock::offset_ms(asked_at, since.elapsed(), answer.accepted_at);
        self.clock.set_offset_ms(offset_ms);
        let is_skewed = Duration::from_millis(offset_ms.unsigned_abs()) > clock::SKEW_WARN;
        if is_skewed && !*skewed {
            log::warn!(offset_ms; "clock_skew: this node's clock is off; expiry is judged by control's");
        } else if *skewed && !is_skewed {
            log::info!(offset_ms; "The node's clock agrees with control's again");
        }
        *skewed = is_skewed;
        Ok(answer.reconcile)
    }
}
