//! TLS sessions that are taken up again: after a lost connection, and after a restart of this service.
//!
//! A ticket is sealed with a key that is derived from the server key and from the hours in which it is given out, and
//! nothing is kept here: ten thousand nodes cost no memory, whoever has the server key opens it, and a restart forgets
//! none. It opens nothing that was recorded, because TLS 1.3 agrees on new keys all the same. TLS 1.2 would not: its
//! sessions get no ticket.

use muster_shared::time::Timestamp;
use ring::aead;
use rustls::server::ProducesTickets;

use crate::keys::{Purpose, ServerKey, chance};

/// How long one key seals. The one before it still opens.
const EPOCH_SECONDS: u32 = 6 * 60 * 60;
const NAME_BYTES: usize = 8;

pub(crate) struct Tickets(pub(crate) ServerKey);

impl std::fmt::Debug for Tickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tickets")
    }
}

fn epoch(now: Timestamp) -> i64 {
    now.as_millis().div_euclid(i64::from(EPOCH_SECONDS) * 1000)
}

/// Whether a session is one of TLS 1.3, as rustls writes it down: the version stands behind the server's name. What
/// cannot be told is none, and gets no ticket.
fn is_tls13(session: &[u8]) -> bool {
    let version = match session {
        [0, rest @ ..] => rest,
        [1, len, rest @ ..] => rest.get(usize::from(*len)..).unwrap_or_default(),
        _ => return false,
    };
    version.starts_with(&[3, 4])
}

impl Tickets {
    fn key(&self, name: [u8; NAME_BYTES]) -> Option<aead::LessSafeKey> {
        let key = self.0.mac(Purpose::TlsTicket, &name);
        let key = aead::UnboundKey::new(&aead::CHACHA20_POLY1305, &key).ok()?;
        Some(aead::LessSafeKey::new(key))
    }

    fn seal(&self, session: &[u8], now: Timestamp) -> Option<Vec<u8>> {
        if !is_tls13(session) {
            return None;
        }
        let name = epoch(now).to_be_bytes();
        let nonce = chance::<{ aead::NONCE_LEN }>().ok()?;
        let mut text = session.to_vec();
        self.key(name)?
            .seal_in_place_append_tag(
                aead::Nonce::assume_unique_for_key(nonce),
                aead::Aad::from(name),
                &mut text,
            )
            .ok()?;
        Some([&name[..], &nonce, &text].concat())
    }

    fn open(&self, ticket: &[u8], now: Timestamp) -> Option<Vec<u8>> {
        let (name, rest) = ticket.split_first_chunk::<NAME_BYTES>()?;
        let (nonce, text) = rest.split_first_chunk::<{ aead::NONCE_LEN }>()?;
        // Whoever connects chooses these bytes.
        let age = epoch(now).checked_sub(i64::from_be_bytes(*name))?;
        if !(0..=1).contains(&age) {
            return None;
        }
        let mut text = text.to_vec();
        let session = self
            .key(*name)?
            .open_in_place(
                aead::Nonce::assume_unique_for_key(*nonce),
                aead::Aad::from(*name),
                &mut text,
            )
            .ok()?;
        Some(session.to_vec())
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        EPOCH_SECONDS
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal(plain, Timestamp::now())
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.open(cipher, Timestamp::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: &[u8] = &[0, 3, 4, 0x13, 2, 9, 9, 9];
    const HOURS: i64 = 60 * 60 * 1000;

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_millis(hours * HOURS)
    }

    #[test]
    fn a_ticket_opens_for_its_hours_and_those_after_them() {
        let tickets = Tickets(ServerKey::of_tests());
        let ticket = tickets.seal(SESSION, at(600)).unwrap();
        for hours in [600, 605, 606, 611] {
            assert_eq!(
                tickets.open(&ticket, at(hours)).as_deref(),
                Some(SESSION),
                "{hours}"
            );
        }
        for hours in [612, 599, 0] {
            assert_eq!(tickets.open(&ticket, at(hours)), None, "{hours}");
        }
    }

    #[test]
    fn nothing_else_opens() {
        let tickets = Tickets(ServerKey::of_tests());
        let ticket = tickets.seal(SESSION, at(600)).unwrap();
        for at_byte in 0..ticket.len() {
            let mut other = ticket.clone();
            other[at_byte] ^= 1;
            assert_eq!(tickets.open(&other, at(601)), None, "byte {at_byte}");
            assert_eq!(tickets.open(&ticket[..at_byte], at(601)), None);
        }
    }

    #[test]
    fn only_sessions_of_tls_13_get_one() {
        let tickets = Tickets(ServerKey::of_tests());
        assert!(tickets.seal(&[1, 2, b'a', b'b', 3, 4, 0], at(1)).is_some());
        for session in [&[0, 3, 3, 0x13, 2][..], &[1, 200, b'a'], &[1], &[2, 3, 4], &[]] {
            assert_eq!(tickets.seal(session, at(1)), None, "{session:?}");
        }
    }
}
