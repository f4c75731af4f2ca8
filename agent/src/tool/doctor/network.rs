//! The way to control, step by step, so that the first step that fails is the one that is named.

use std::{
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    sync::Arc,
    time::Duration,
};

use muster_shared::{doctor::Finding, time::Timestamp};
use reqwest::Url;
use rustls::pki_types::ServerName;

use crate::{
    clock,
    control::{self, CallError},
    exit::{self, Exit},
    identity::Identity,
    reach::{Reach, certificate::not_after},
};

const CONNECT_WAIT: Duration = Duration::from_secs(5);
const TALK_WAIT: Duration = Duration::from_secs(10);
/// Of a certificate: from here on somebody should look after it.
const EXPIRY_WARN: Duration = Duration::from_secs(14 * DAY_SECONDS);
const DAY_SECONDS: u64 = 24 * 60 * 60;

pub(super) fn examine(identity: &Identity, reach: &Reach) -> Result<Vec<Finding>, Exit> {
    let server = match control::parse_server(&identity.server) {
        Ok(server) => server,
        Err(why) => return Ok(vec![Finding::fail("control", why, "enrol this machine anew")]),
    };
    let mut findings = Vec::new();
    match reach.proxy_on_the_way_to(&server) {
        Some(proxy) => {
            findings.push(Finding::ok(
                "proxy",
                format!("{proxy} is used; a variable of this shell is none of the daemon's own unit"),
            ));
            findings.push(Finding::skip(
                "dns, tcp, tls",
                "the proxy makes the connection; only what control answers is looked at",
            ));
        }
        None => {
            findings.push(Finding::ok("proxy", "none is used"));
            let reached = directly(&server, (reach, &identity.ca_pem), &mut findings);
            if !reached {
                findings.push(Finding::skip("key, clock", "control was not reached"));
                return Ok(findings);
            }
        }
    }
    findings.extend(ask_control(&server, identity, reach)?);
    Ok(findings)
}

/// Says whether the certificate holds and the connection stands.
fn directly(server: &Url, trust: (&Reach, &[u8]), findings: &mut Vec<Finding>) -> bool {
    let host = server.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = server.port_or_known_default().unwrap_or(443);
    let addresses: Vec<SocketAddr> = match (host, port).to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(err) => {
            findings.push(Finding::fail(
                "dns",
                format!("{host} has no address: {err}"),
                "see /etc/resolv.conf and /etc/hosts, and whether the name is right",
            ));
            return false;
        }
    };
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    findings.push(Finding::ok("dns", format!("{host} is {}", texts.join(", "))));
    let connected = addresses
        .iter()
        .map(|address| TcpStream::connect_timeout(address, CONNECT_WAIT));
    let mut failures = Vec::new();
    for (connection, text) in connected.zip(&texts) {
        match connection {
            Ok(connection) => {
                findings.push(Finding::ok("tcp", format!("{text} takes connections")));
                return handshake(connection, host, trust, findings);
            }
            Err(err) => failures.push(format!("{text}: {err}")),
        }
    }
    findings.push(Finding::fail(
        "tcp",
        format!("no connection to {}", failures.join("; ")),
        "see whether control runs, and whether a firewall between lets this port through",
    ));
    false
}

fn handshake(mut tcp: TcpStream, host: &str, trust: (&Reach, &[u8]), findings: &mut Vec<Finding>) -> bool {
    match shake_hands(&mut tcp, host, trust) {
        Ok(not_after) => {
            findings.push(Finding::ok(
                "tls",
                "the certificate is of the pinned authority and for this name",
            ));
            findings.push(expiry(not_after, Timestamp::now()));
            true
        }
        Err(why) => {
            findings.push(Finding::fail(
                "tls",
                format!("the handshake failed: {why}"),
                "an expired certificate: renew it at control, and see this machine's clock; an unknown issuer: this is not the \
                 control service that enrolled this machine, or something between breaks TLS open, and then its CA is to be \
                 named in control.extra_ca_file",
            ));
            false
        }
    }
}

/// When the server's certificate ends, as far as it can be read.
fn shake_hands(
    tcp: &mut TcpStream,
    host: &str,
    (reach, ca_pem): (&Reach, &[u8]),
) -> Result<Option<Timestamp>, String> {
    let tls = reach.tls_to(&[ca_pem])?;
    let name = ServerName::try_from(host.to_owned()).map_err(|err| err.to_string())?;
    let mut session = rustls::ClientConnection::new(Arc::new(tls), name).map_err(|err| exit::chain(&err))?;
    tcp.set_read_timeout(Some(TALK_WAIT))
        .map_err(|err| err.to_string())?;
    tcp.set_write_timeout(Some(TALK_WAIT))
        .map_err(|err| err.to_string())?;
    while session.is_handshaking() {
        session.complete_io(tcp).map_err(|err| exit::chain(&err))?;
    }
    let first = session.peer_certificates().and_then(|chain| chain.first());
    Ok(first.and_then(|certificate| not_after(certificate)))
}

fn expiry(not_after: Option<Timestamp>, now: Timestamp) -> Finding {
    let check = "certificate";
    let Some(not_after) = not_after else {
        return Finding::skip(check, "its end could not be read");
    };
    let left = now.until(not_after);
    let text = format!("ends in {} days, on {not_after}", left.as_secs() / DAY_SECONDS);
    if left < EXPIRY_WARN {
        Finding::warn(check, text, "renew the certificate of control")
    } else {
        Finding::ok(check, text)
    }
}

fn ask_control(server: &Url, identity: &Identity, reach: &Reach) -> Result<Vec<Finding>, Exit> {
    let http = match reach.control_client(&identity.ca_pem) {
        Ok(http) => http,
        Err(why) => {
            return Ok(vec![Finding::fail(
                "key",
                why,
                "restore ca.pem, or enrol this machine anew",
            )]);
        }
    };
    let asked_at = Timestamp::now();
    let answer = crate::runtime()?.block_on(control::probe(
        (reach, &http),
        server,
        (identity.node_id, &identity.nsk),
    ));
    let answered_at = Timestamp::now();
    Ok(match answer {
        Ok(date) => {
            let round_trip = asked_at.until(answered_at);
            // A date names a whole second: its middle is the best guess.
            let date = date.map(|date| date.plus(Duration::from_millis(500)));
            let offset = date.map(|date| clock::offset_ms(asked_at, round_trip, date));
            vec![
                Finding::ok("key", "control takes this node's key"),
                judge_clock(offset),
            ]
        }
        Err(err) => vec![
            refused(&err),
            Finding::skip("clock", "control did not tell its time"),
        ],
    })
}

fn refused(err: &CallError) -> Finding {
    let check = "key";
    let text = err.to_string();
    match err {
        CallError::Refused { status: 401, .. } => Finding::fail(
            check,
            format!("control does not accept this node's key (401): {text}"),
            "see `muster node show`: if the node was taken out of service, or control was restored from an older backup, \
             move the state directory away and enrol this machine anew",
        ),
        CallError::Refused { .. } | CallError::Senseless(_) => {
            Finding::fail(check, text, "see the log of control")
        }
        CallError::Unreachable(_) => Finding::fail(
            check,
            text,
            "see the proxy and its log, where there is one, and whether control runs",
        ),
    }
}

fn judge_clock(offset_ms: Option<i64>) -> Finding {
    let check = "clock";
    let Some(offset_ms) = offset_ms else {
        return Finding::skip(check, "control did not tell its time");
    };
    let off = Duration::from_millis(offset_ms.unsigned_abs());
    if off <= clock::SKEW_WARN {
        return Finding::ok(check, "agrees with control's to a few seconds");
    }
    let direction = if offset_ms > 0 { "behind" } else { "ahead of" };
    Finding::warn(
        check,
        format!(
            "{} s {direction} control's; the daemon judges expiry by control's clock all the same",
            off.as_secs()
        ),
        "see that time is synchronised: timedatectl",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shared::doctor::CheckVerdict;

    #[test]
    fn a_certificate_that_ends_soon_is_a_warning() {
        let now = Timestamp::from_millis(0);
        let verdict = |days| {
            let end = now.plus(Duration::from_secs(days * DAY_SECONDS));
            expiry(Some(end), now).verdict
        };
        assert_eq!((verdict(30), verdict(3)), (CheckVerdict::Ok, CheckVerdict::Warn));
        assert_eq!(expiry(None, now).verdict, CheckVerdict::Skip);
    }

    #[test]
    fn a_clock_that_is_off_is_a_warning_with_its_direction() {
        assert_eq!(judge_clock(Some(-900)).verdict, CheckVerdict::Ok);
        let behind = judge_clock(Some(60_000));
        assert_eq!(behind.verdict, CheckVerdict::Warn);
        assert!(behind.finding.contains("60 s behind"), "{}", behind.finding);
        assert!(judge_clock(Some(-60_000)).finding.contains("ahead of"));
    }
}
