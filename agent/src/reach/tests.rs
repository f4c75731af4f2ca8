use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;

fn reach() -> Reach {
    Reach::new(Proxies::default(), vec![])
}

#[test]
fn a_ca_file_without_certificates_is_refused() {
    assert!(roots(&[b"hello"]).is_err());
    assert!(reach().client(&[b"hello"]).is_err());
}

#[test]
fn loopback_is_known_in_every_spelling() {
    for (raw, expected) in [
        ("http://127.0.0.1:9000/x", true),
        ("http://[::1]:9000/x", true),
        ("http://localhost/x", true),
        ("http://127.0.0.1.example/x", false),
        ("http://10.0.0.1/x", false),
    ] {
        assert_eq!(is_loopback(&Url::parse(raw).unwrap()), expected, "{raw}");
    }
}

#[test]
fn a_certificate_out_of_time_is_told_as_a_matter_of_clocks() {
    let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    let behind = CertificateError::NotValidYetContext {
        time: at(100),
        not_before: at(1_000_000_000),
    };
    let ahead = CertificateError::ExpiredContext {
        time: at(2_000_000_000),
        not_after: at(1_000_000_000),
    };
    for (trouble, sense) in [(behind, "begins at"), (ahead, "ended at")] {
        let inner = rustls::Error::InvalidCertificate(trouble);
        let wrapped = std::io::Error::new(std::io::ErrorKind::InvalidData, inner);
        let trouble = certificate_trouble(&wrapped).unwrap();
        let advice = reach().advice(trouble);
        assert!(
            advice.contains("clock_skew") && advice.contains(sense),
            "{advice}"
        );
        assert!(advice.contains("2001-09-09T01:46:40"), "{advice}");
    }
    assert_eq!(reach().advice(&CertificateError::BadSignature), "");
}

/// Answers each look-up with the next of its addresses.
#[derive(Clone)]
struct Moving(Arc<AtomicUsize>, Vec<[u8; 4]>);

impl reqwest::dns::Resolve for Moving {
    fn resolve(&self, _: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let nth = self.0.fetch_add(1, Ordering::Relaxed);
        let address = SocketAddr::from((self.1[nth], 0));
        Box::pin(async move { Ok(Box::new([address].into_iter()) as reqwest::dns::Addrs) })
    }
}

/// Which one is of no matter where nothing is encrypted.
fn an_authority() -> Vec<u8> {
    let mut ca = rcgen::CertificateParams::default();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    ca.self_signed(&key).unwrap().pem().into_bytes()
}

#[tokio::test]
async fn a_name_is_looked_up_again_for_every_connection() {
    let here = TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = here.local_addr().unwrap().port();
    let there = TcpListener::bind(("127.0.0.3", port)).await.unwrap();
    let look_ups = Arc::new(AtomicUsize::new(0));
    let resolver = Moving(Arc::clone(&look_ups), vec![[127, 0, 0, 2], [127, 0, 0, 3]]);
    let client = reach()
        .client(&[&an_authority()])
        .unwrap()
        .dns_resolver(resolver)
        .build()
        .unwrap();
    for (nth, listener) in [here, there].into_iter().enumerate() {
        let answered = tokio::spawn(async move {
            let (mut tcp, _) = listener.accept().await.unwrap();
            let mut head = [0; 1024];
            let _ = tcp.read(&mut head).await.unwrap();
            let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok";
            tcp.write_all(answer).await.unwrap();
            drop(tcp);
        });
        let answer = client
            .get(format!("http://control.example:{port}/"))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.text().await.unwrap(), "ok");
        answered.await.unwrap();
        assert_eq!(look_ups.load(Ordering::Relaxed), nth + 1);
    }
}
