//! Random bytes of the system's.

use std::io;

use uuid::Uuid;

pub(crate) fn bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map(|()| bytes)
        .map_err(|err| io::Error::other(format!("the system gives no random bytes: {err}")))
}

pub(crate) fn uuid() -> io::Result<Uuid> {
    Ok(uuid::Builder::from_random_bytes(bytes()?).into_uuid())
}
