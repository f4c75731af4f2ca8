//! How builtins speak with systemd and logind (`org.freedesktop.login1(5)`), and the words for what they answer.

use std::{collections::HashMap, time::Duration};

use zbus::{Connection, OwnedVariant, connection::Builder, fdo::PropertiesProxy, wire::OwnedObjectPath};

use super::Failed;
use crate::exit;

/// For an answer, not for a job: those are waited for by their signal.
const ANSWER_WITHIN: Duration = Duration::from_secs(90);

#[zbus::proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
pub(super) trait Login {
    fn set_wall_message(&self, message: &str, enable: bool) -> zbus::Result<()>;
    fn reboot(&self, interactive: bool) -> zbus::Result<()>;
}

pub(super) async fn bus() -> Result<Connection, Failed> {
    Builder::system()
        .method_timeout(ANSWER_WITHIN)
        .build()
        .await
        .map_err(|err| Failed::Work(format!("systemd cannot be reached: {}", exit::chain(&err))))
}

/// What a call came to, in words. That nobody answers to the name is the one an operator meets most.
pub(super) fn refused(err: &zbus::Error) -> Failed {
    Failed::Work(why(err))
}

pub(super) fn why(err: &zbus::Error) -> String {
    if is_absent(err) {
        return "systemd cannot be reached: it is not on the system's bus".to_owned();
    }
    if let zbus::Error::MethodError(name, Some(why), _) = err {
        let short = name.as_str().rsplit('.').next().unwrap_or_default();
        return format!("systemd refused: {short}: {why}");
    }
    format!("systemd refused: {}", exit::chain(err))
}

/// Whether nobody answers to the name that was called.
pub(super) fn is_absent(err: &zbus::Error) -> bool {
    matches!(err, zbus::Error::MethodError(name, _, _) if is_nobody(name.as_str()))
}

fn is_nobody(error_name: &str) -> bool {
    [
        "org.freedesktop.DBus.Error.ServiceUnknown",
        "org.freedesktop.DBus.Error.NameHasNoOwner",
    ]
    .contains(&error_name)
}

/// All properties that one interface of an object has.
pub(super) struct Properties(HashMap<String, OwnedVariant>);

impl Properties {
    pub(super) async fn of(
        bus: &Connection,
        path: &OwnedObjectPath,
        interface: &str,
    ) -> Result<Self, Failed> {
        let interface =
            zbus::names::InterfaceName::try_from(interface).map_err(|err| Failed::Work(exit::chain(&err)))?;
        let proxy = PropertiesProxy::builder(bus)
            .destination("org.freedesktop.systemd1")
            .path(path.as_ref())
            .build()
            .await
            .map_err(|err| refused(&err))?;
        let all = proxy.get_all(interface).await;
        all.map(Self)
            .map_err(|err| Failed::Work(format!("systemd refused: {}", exit::chain(&err))))
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        let text: &str = self.0.get(name)?.downcast_ref().ok()?;
        Some(text.to_owned())
    }

    pub(super) fn unsigned(&self, name: &str) -> Option<u64> {
        let value = self.0.get(name)?;
        value
            .downcast_ref::<u64>()
            .or_else(|_| value.downcast_ref::<u32>().map(u64::from))
            .ok()
    }

    pub(super) fn signed(&self, name: &str) -> Option<i32> {
        self.0.get(name)?.downcast_ref().ok()
    }
}
