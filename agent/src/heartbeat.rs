//! The sign of life, and the measuring of the clock that comes with its answer.

use std::{io::Read as _, time::Duration};

use muster_shared::{
    ids::{Digest, Digester},
    time::Timestamp,
    wire::{Base64, HeartbeatRequest, HeartbeatResponse, Parameters},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant as Moment, sleep_until},
};

use crate::{
    backoff::{self, Backoff},
    clock::{self, Clock},
    control::{CallError, Control},
    declare::{Poke, Pokes},
    enroll::machine,
    eventloop::Event,
    exit,
    identity::Secret,
    keyring::Keys,
    kick::Kicks,
    link::Link,
    nsk::KeyFiles,
};

/// What waits from before a restart starts soon after control has made up its mind.
const CONTESTED_WAIT: Duration = Duration::from_secs(2);

/// Within which time a heartbeat comes that control waits for: that of a whole fleet waits at the same moment.
const SOON: Duration = Duration::from_secs(30);

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
    pub(crate) pokes: Pokes,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) keys: KeyFiles,
    pub(crate) signing: Keys,
    /// The last restore of control after which all was told again.
    pub(crate) told_again: watch::Receiver<Option<Timestamp>>,
    pub(crate) link: watch::Receiver<Link>,
    pub(crate) kicks: Kicks,
}

impl Heart {
    /// `measured` is told when the clock has been measured for the first time, or could not be.
    pub(crate) async fn beat(mut self, measured: oneshot::Sender<()>) {
        let mut measured = Some(measured);
        let (mut failing, mut skewed, mut admitted) = (false, false, false);
        let mut unauthorized = false;
        // What comes between does not move it: a fleet whose control was restarted would beat as one from then on.
        let mut regular = Moment::now();
        // Tried again sooner than the next one is due, never later.
        let mut backoff = Backoff::new(backoff::Bounds {
            max: self.backoff.max.min(self.interval),
            ..self.backoff
        });
        loop {
            self.kicks.forget();
            let next = match self.once(&mut skewed).await {
                Ok(answer) => {
                    (failing, unauthorized) = (false, false);
                    backoff.reset();
                    if answer.reconcile {
                        self.pokes.poke(Poke::Declare);
                    }
                    if !answer.contested && !admitted {
                        admitted = true;
                        if self.events.send(Event::Admitted).await.is_err() {
                            return;
                        }
                    }
                    if let Some(restored) = answer.restored
                        && self.events.send(Event::Restored(restored)).await.is_err()
                    {
                        return;
                    }
                    let now = Moment::now();
                    if regular <= now {
                        regular = now + self.interval;
                    }
                    if admitted {
                        regular
                    } else {
                        regular.min(now + CONTESTED_WAIT)
                    }
                }
                Err(err) => {
                    // That control is back and does not know this node is news after an outage.
                    let news = !failing || (err.is_unauthorized() && !unauthorized);
                    unauthorized |= err.is_unauthorized();
                    let level = if news { log::Level::Warn } else { log::Level::Debug };
                    log::log!(level, error:% = err; "The heartbeat was not taken and is tried again");
                    failing = true;
                    Moment::now() + backoff.next_unless_asked(err.retry_after(), backoff::chance())
                }
            };
            // Nobody waits for it any more after the first time.
            if let Some(measured) = measured.take() {
                let _ = measured.send(());
            }
            if failing {
                // Not before control wants to be asked again, whatever else is news but the word of the node's own admin.
                tokio::select! {
                    () = sleep_until(next) => {}
                    () = self.kicks.kicked() => backoff.reset(),
                }
            } else {
                self.rest_until(next).await;
            }
        }
    }

    /// Until the next one is due, or soon after there is something that control has to hear or to say.
    async fn rest_until(&mut self, due: Moment) {
        tokio::select! {
            () = sleep_until(due) => return,
            () = self.signing.changed() => {}
            Ok(()) = self.told_again.changed() => {}
            () = is_back(&mut self.link) => {}
        }
        let share = f64::from(backoff::chance()) / f64::from(u32::MAX);
        sleep_until(due.min(Moment::now() + SOON.mul_f64(share))).await;
    }

    async fn once(&mut self, skewed: &mut bool) -> Result<HeartbeatResponse, CallError> {
        let answer = loop {
            let asked = clock::Moment::now();
            let answer = self.ask(Timestamp::now()).await?;
            if self
                .clock
                .answered(asked, clock::Moment::now(), answer.accepted_at)
            {
                break answer;
            }
        };
        let offset_ms = self.clock.offset_ms(Timestamp::now());
        let is_skewed = Duration::from_millis(offset_ms.unsigned_abs()) > clock::SKEW_WARN;
        if is_skewed && !*skewed {
            log::warn!(offset_ms; "clock_skew: this node's clock is off; expiry is judged by control's");
        } else if *skewed && !is_skewed {
            log::info!(offset_ms; "The node's clock agrees with control's again");
        }
        *skewed = is_skewed;
        if answer.rotate_keys {
            self.change_key().await;
        }
        Ok(answer)
    }

    /// Tries a key that waits before the one in use: control may know it already, and the one in use not any more.
    async fn ask(&mut self, now: Timestamp) -> Result<HeartbeatResponse, CallError> {
        let beat = HeartbeatRequest {
            client_now: now,
            binary_checksum: Base64(self.binary.checksum.as_bytes().to_vec()),
            binary_version: env!("CARGO_PKG_VERSION").to_owned(),
            nat_summary: Parameters::new(),
            hostname: Some(machine::hostname()),
            machine_id: machine::machine_id(),
            signing_serial: Some(self.signing.serial()),
            told_again: *self.told_again.borrow(),
        };
        let Some(next) = self.keys.waiting() else {
            return self.control.heartbeat(&beat).await;
        };
        match self.control.heartbeat_with(&next, &beat).await {
            Ok(answer) => {
                match self.keys.adopt() {
                    Ok(()) => log::info!("The node's key was changed"),
                    Err(err) => {
                        log::error!(error:% = err; "The new key is in use, and could not be put in its place yet")
                    }
                }
                Ok(answer)
            }
            Err(err) if err.is_unauthorized() => {
                // Only an old key that counts shows that the new one does not: control may be restoring a backup.
                let answer = self.control.heartbeat(&beat).await?;
                log::warn!(
                    "Control does not know the key that was fetched last; the one before still counts"
                );
                if let Err(err) = self.keys.discard() {
                    log::warn!(error:% = err; "The key that does not count could not be removed");
                }
                Ok(answer)
            }
            Err(err) => Err(err),
        }
    }

    /// What fails here is asked for again at the next heartbeat; until then the key in use counts.
    async fn change_key(&mut self) {
        log::info!("Control asks to change the node's key");
        let new = match self.control.fetch_nsk().await {
            Ok(new) => Secret::new(new.nsk),
            Err(err) => return log::warn!(error = exit::chain(&err); "A new key could not be fetched"),
        };
        if let Err(err) = self.keys.keep(new) {
            return log::error!(error:% = err; "The new key could not be kept, and is not used");
        }
        if let Err(err) = self.ask(Timestamp::now()).await {
            log::warn!(error = exit::chain(&err); "The new key could not be used yet");
        }
    }
}

/// Control may be another one since, or have been restored.
async fn is_back(link: &mut watch::Receiver<Link>) {
    while link.changed().await.is_ok() {
        if link.borrow_and_update().connected {
            return;
        }
    }
    // Nobody opens streams any more.
    std::future::pending().await
}
